#![no_main]

#[path = "../checks/smtp_fields.rs"]
mod smtp_fields;

libfuzzer_sys::fuzz_target!(|data: &[u8]| smtp_fields::check(data));
