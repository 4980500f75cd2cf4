#![no_main]

#[path = "../checks/mailbox.rs"]
mod mailbox;

libfuzzer_sys::fuzz_target!(|data: &[u8]| mailbox::check(data));
