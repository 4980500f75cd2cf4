//! The binary: hands the command line to the library.

use std::process::ExitCode;

/// Bodies are allocated on one thread and freed on another, which the C library's allocator does
/// under locks.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    pillarbox::cli::run()
}
