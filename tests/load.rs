//! Short forms of the loads that the program `load` runs in full. They form one test, because they count the memory
//! and the files of their process.

use tests::{
    heap::CountingAllocator,
    load::{self, Report},
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn kept(report: Report) {
    println!("{report}");
    assert_eq!(report.broken, Vec::<String>::new());
    assert!(!report.figures.is_empty() && report.figures.iter().all(|figure| figure.value.is_finite()));
}

#[test]
fn every_part_keeps_its_promises_under_a_short_load() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    kept(runtime().block_on(load::chain::run(&load::chain::Size::SHORT)).unwrap());
    kept(runtime().block_on(load::store::run(&load::store::Size::SHORT)).unwrap());
    kept(runtime().block_on(load::peers::run(&load::peers::Size::SHORT)).unwrap());
    kept(runtime().block_on(load::soak::run(&load::soak::Size::SHORT)).unwrap());
    kept(load::validator::run(&load::validator::Size::SHORT).unwrap());
}
