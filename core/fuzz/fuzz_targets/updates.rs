#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| docshard_core_fuzz::targets::updates(data));
