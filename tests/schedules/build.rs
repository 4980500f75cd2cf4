//! Says to the sources of the service that a scheduler runs their threads.

fn main() {
    println!("cargo::rustc-cfg=schedules");
    println!("cargo::rerun-if-changed=build.rs");
}
