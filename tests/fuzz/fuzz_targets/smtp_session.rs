#![no_main]

#[path = "../checks/smtp_session.rs"]
mod smtp_session;

libfuzzer_sys::fuzz_target!(|data: &[u8]| smtp_session::check(data));
