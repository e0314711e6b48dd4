//! Measures the core's time for a document, in nanoseconds: `cargo bench -p docshard-core`.

#![allow(missing_docs)] // of what criterion makes

mod cases;

use criterion::{Criterion, criterion_group, criterion_main};

fn everything(criterion: &mut Criterion) {
    for case in cases::all() {
        criterion.bench_function(case.name, |bencher| bencher.iter(case.prepare()));
    }
}

criterion_group!(benches, everything);
criterion_main!(benches);
