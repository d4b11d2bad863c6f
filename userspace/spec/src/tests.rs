//! Files as users write them, and as they mistype them.

use proptest::prelude::*;

use super::*;

fn uprobes(text: &str) -> Result<Spec, SpecError> {
    Spec::parse(text, Dialect::Uprobes)
}

fn refusal(text: &str) -> String {
    uprobes(text).expect_err(text).to_string()
}

/// A probe with these statements.
fn probe(statements: &str) -> String {
    format!("provider p {{ probe q {{\n{statements}\n}} }}")
}

#[test]
fn the_files_that_are_part_of_the_program_are_right() {
    let alloc = uprobes(ALLOC).expect("alloc.uprobes");
    let malloc = alloc
        .probes
        .iter()
        .find(|probe| probe.to_string() == "libc:malloc");
    let malloc = malloc.expect("malloc");
    assert_eq!(malloc.moment, Moment::Call(Exit::Uretprobe));
    assert_eq!(malloc.emit, Emit::Source("alloc".to_owned()));
    let tokio = Spec::parse(TOKIO, Dialect::Usdt).expect("tokio.usdt");
    let start = tokio
        .probes
        .iter()
        .find(|probe| probe.name == "task-poll-start");
    let places = &start.expect("poll start").places;
    assert_eq!(places[0], Place::Note);
    assert_eq!(places[1], Place::Discovered("poll-start".to_owned()));
}

#[test]
fn a_probe_of_every_statement() {
    let text = r#"
        # Which pages a tenant reads.
        provider store {
            probe get-page {
                at "app::store::get_page*" in exe;   # a pattern
                at "SSL_read" + 0x10 in "libssl.so*";
                at 0x4010 in any;
                let tenant: u32 = arg0;
                read key: bytes[16] = arg1;
                read path: str[64] = *(arg2 + 8), *(arg2 + 16);
                read depth: i32 = *(*(rsp + 8) - 4) unit pages kind gauge;
                read thread: u32 = tid;
                where tenant == 7 && (key starts x"00ff" || path == "/a#b") && depth >= -1;
                emit event "PageRead";
            }
        }"#;
    insta::assert_debug_snapshot!(uprobes(text).expect("right"));
}

#[test]
fn a_call_is_a_span_and_has_a_result() {
    let text = probe("at \"f\"; on call; read n: u64 = arg0; read out: i64 = result;");
    let spec = uprobes(&text).expect("right");
    assert_eq!(spec.probes[0].moment, Moment::Call(Exit::Instructions));
    assert_eq!(spec.probes[0].emit, Emit::Span("p:q".to_owned()));
}

#[test]
fn a_filter_stands_alone() {
    let text = probe("at \"f\"; let tenant: u32 = arg0; read key: bytes[16] = arg1;");
    let values = uprobes(&text).expect("right").probes.remove(0).values;
    let filter = Filter::parse("tenant == 7 || tenant == 9", &values).expect("right");
    assert_eq!(filter.tests(), 2);
    let error = Filter::parse("tenent == 7", &values).expect_err("a typing error");
    assert_eq!(
        error.to_string(),
        "1:1: no value \"tenent\", only tenant, key"
    );
    let error = Filter::parse("tenant = 7", &values).expect_err("a typing error");
    assert_eq!(
        error.to_string(),
        "1:8: expected `==`, `!=`, `<`, `<=`, `>`, `>=`, `&` or `starts`, found '='"
    );
}

#[test]
fn what_is_not_the_grammar_is_refused_where_it_stands() {
    let refusals = [
        "provider",
        "prowider p {}",
        "provider p { probe q { at f; } }",
        "provider p { probe q { at \"f\" } }",
        "provider p { probe q { at \"f\"; read x u64 = arg0; } }",
        "provider p { probe q { at \"f\"; read x: u65 = arg0; } }",
        "provider p { probe q { at \"f\"; on exit; } }",
        "provider p { probe q { at \"f\"; read x: u8 = arg0 kind number; } }",
        "provider p { probe q { at \"f\"; read x: u8 = argument; } }",
        "provider p { probe q { at \"f\n\"; } }",
        "provider p { probe q { discovered spawn; } }",
    ]
    .map(|text| format!("{text:?}\n  {}", refusal(text)));
    insta::assert_snapshot!(refusals.join("\n"));
}

#[test]
fn what_makes_no_sense_is_refused_with_the_reason() {
    let refusals = [
        "read x: u64 = arg0;",
        "at \"\";",
        "at \"f\"; read x: u64 = arg0; read x: u64 = arg1;",
        "at \"f\"; read x: u64 = arg6;",
        "at \"f\"; read x: u64 = result;",
        "at \"f\"; on return; read x: u64 = arg0;",
        "at \"f\"; on call; read x: u64 = result; where x == 1;",
        "at \"f\" + 4; on call;",
        "at \"f\"; emit span;",
        "at \"f\"; emit alloc \"x\";",
        "at \"f\"; read x: u64 = arg0, arg1;",
        "at \"f\"; read x: cstr[8] = arg0, arg1;",
        "at \"f\"; read x: str[257] = arg0;",
        "at \"f\"; read x: u64 = *****arg0;",
        "at \"f\"; read x: u8 = arg0; where x == 256;",
        "at \"f\"; read x: i8 = arg0; where x == -129;",
        "at \"f\"; read x: u8 = arg0; where x == \"a\";",
        "at \"f\"; read x: str[8] = arg0; where x < \"a\";",
        "at \"f\"; read x: u8 = arg0; where x starts 1;",
        "at \"f\"; where x == 1;",
        "at \"f\"; on entry; on call;",
        "at \"f\"; read x: u64 = arg0 + 99999999999;",
        "at 99999999999999999999;",
    ]
    .map(|statements| format!("{statements}\n  {}", refusal(&probe(statements))));
    insta::assert_snapshot!(refusals.join("\n"));
}

#[test]
fn limits_hold() {
    let values: Vec<_> = (0..9).map(|i| format!("read v{i}: u64 = arg0;")).collect();
    let error = refusal(&probe(&format!("at \"f\"; {}", values.concat())));
    assert!(error.ends_with("a probe reads at most 8 values"), "{error}");
    let tests = ["x == 1"; 9].join(" && ");
    let error = refusal(&probe(&format!(
        "at \"f\"; read x: u64 = arg0; where {tests};"
    )));
    assert!(error.contains("9 comparisons, and 8 can be"), "{error}");
    let deep = "(".repeat(100_000);
    let error = refusal(&probe(&format!(
        "at \"f\"; read x: u64 = arg0; where {deep}"
    )));
    assert!(error.contains("more than 64 parentheses"), "{error}");
}

proptest! {
    #[test]
    fn no_text_is_too_much(text in "(provider|probe|at|read|let|where|on|emit|[a-z]{1,3}|[0-9]{1,20}|[{}();:=*+,\"#\n &|<>!-]){0,60}") {
        let _ = uprobes(&text);
        let _ = Spec::parse(&text, Dialect::Usdt);
    }

    #[test]
    fn a_place_of_an_error_is_in_the_text(text in "\\PC{0,80}") {
        if let Err(error) = uprobes(&text) {
            prop_assert!(error.line >= 1 && error.line <= text.lines().count() + 1);
        }
    }
}
