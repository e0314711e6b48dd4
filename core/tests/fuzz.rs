//! Runs the fuzzer's targets briefly on reproducible random bytes. `make fuzz` runs longer, guided by coverage.
//!
//! `FUZZ_ROUNDS` is the number of inputs for each target (by default 20,000).

#[path = "../fuzz/src/source.rs"]
#[allow(dead_code)]
mod source;
#[path = "../fuzz/src/targets.rs"]
mod targets;

/// A small generator of random numbers (xorshift), so that a failure repeats.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self) -> Vec<u8> {
        (0..self.next() % 96).map(|_| self.next() as u8).collect()
    }
}

/// Runs a target on random bytes.
fn run(seed: u64, target: fn(&[u8])) {
    let rounds = std::env::var("FUZZ_ROUNDS").ok().map_or(20_000, |n| n.parse().expect("FUZZ_ROUNDS is a number"));
    let mut random = Random(seed);
    for round in 0..rounds {
        let bytes = random.bytes();
        if std::panic::catch_unwind(|| target(&bytes)).is_err() {
            panic!("round {round} of seed {seed}: {bytes:?}");
        }
    }
}

#[test]
fn documents() {
    run(1, targets::documents);
}

#[test]
fn filters() {
    run(2, targets::filters);
}

#[test]
fn updates() {
    run(3, targets::updates);
}

#[test]
fn specifications() {
    run(4, targets::specifications);
}

#[test]
fn keys() {
    run(5, targets::keys);
}

/// Random bytes are hardly ever jsonb, so valid jsonb is damaged at random positions instead.
#[test]
fn jsonb() {
    run(6, targets::jsonb);
    run(7, |data| {
        let (damage, seed) = data.split_at(data.len().min(8));
        let json = source::Source(seed).document();
        let Ok(value) = docshard_core::values::document::ext_json::from_json(&json) else { return };
        let Ok(mut bytes) = docshard_core::values::document::write::value(&value) else { return };
        targets::jsonb(&bytes);
        for pair in damage.chunks_exact(2) {
            let at = usize::from(pair[0]) % bytes.len();
            bytes[at] ^= pair[1];
        }
        targets::jsonb(&bytes);
        bytes.truncate(usize::from(damage.first().copied().unwrap_or(0)) % (bytes.len() + 1));
        targets::jsonb(&bytes);
    });
}
