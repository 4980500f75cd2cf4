#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    pillarbox_store::check_row(data);
});
