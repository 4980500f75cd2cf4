#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    pillarbox::store::check_row(data);
});
