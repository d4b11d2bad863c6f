//! The price measurement on this kernel; needs root.

use dial9_bpf_attach::{Abilities, Prices};

/// No time is asserted, only that probing each class was seen to cost one.
#[test]
fn prices_are_measured() {
    let prices = Abilities::probe(None)
        .and_then(Prices::measure)
        .expect("root, BTF and uprobes");
    println!("{prices:?}");
    assert!(prices.emulated_ns > 0.0, "{prices:?}");
    assert!(prices.emulated_stack_ns > 0.0, "{prices:?}");
    assert!(prices.single_stepped_ns > 0.0, "{prices:?}");
}
