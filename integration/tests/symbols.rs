//! Names of functions, by the helper that the command is.
//!
//! In: programs with symbols, without, with debug information; segments that call
//! everything in them. Out: the names that binutils has for the same. Never: a name where
//! no symbol is; a failure that costs more than names.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use dial9_bpf_integration::{
    Attach, Build, TestProgram,
    called::{Named, RANGE_NS, names, segment},
    output_dir, proc, require_root,
    segment::{sealed_segments, unpacked},
    target_dir::{test_program, tracer_binary},
    viewer, wait,
};
use dial9_bpf_symbolize::{CodeFile, DebugInfo, Helper, Placed, Symbolizer, Tail};
use dial9_bpf_trace::mapping::Mapping;
use tempfile::TempDir;

/// Where the programs are said to be loaded.
const BASE: u64 = 0x5555_0000_0000;

/// A program with a function into which two others are inlined, one within the other.
const TWIN: &str = r#"
use std::hint::black_box;
#[inline(always)]
fn innermost(seed: u64) -> u64 {
    (0..black_box(7)).fold(seed, |sum, step| sum.rotate_left(3) ^ black_box(step))
}
#[inline(always)]
fn middle(seed: u64) -> u64 {
    innermost(black_box(seed) + 1) * 3
}
#[inline(never)]
pub fn outermost(seed: u64) -> u64 {
    middle(seed) + black_box(5)
}
fn main() {
    println!("{}", outermost(black_box(2)));
}
"#;

fn symbolizer(debug_info: DebugInfo) -> Symbolizer {
    let helper = Helper {
        program: tracer_binary().expect("it is built"),
        args: vec!["symbolize".into()],
    };
    Symbolizer::new(helper, debug_info)
}

/// A program's code as it is mapped at [`BASE`].
fn mapped(program: &Path) -> Placed {
    let file = CodeFile::new(File::open(program).expect("it is there"));
    let file = file.expect("a program");
    let bytes = fs::metadata(program).expect("it is there").len();
    Placed {
        mapping: Mapping {
            start: BASE,
            end: BASE + bytes,
            device: "00:00".to_owned(),
            inode: 1,
            build_id: file.build_id().map(Into::into),
            path: program.display().to_string(),
            ..Mapping::default()
        },
        file: Some(Arc::new(file)),
    }
}

/// The names of a segment with these addresses.
fn named(
    symbolizer: &mut Symbolizer,
    addresses: &[u64],
    placed: &[Placed],
) -> (BTreeMap<u64, Vec<Named>>, Tail) {
    let dir = output_dir();
    let told: Vec<Mapping> = placed.iter().map(|placed| placed.mapping.clone()).collect();
    let path = segment(dir.path(), addresses, &told);
    let before = fs::read(&path).expect("it is there");
    let tail = symbolizer.tail(&path, placed, RANGE_NS[0]);
    let tail = tail.expect("the segment is whole");
    assert_eq!(fs::read(&path).expect("it is there"), before);
    let whole = [before, tail.bytes.clone()].concat();
    let (names, metadata) = names(&whole);
    let count = |key: &str| metadata.get(&format!("dial9-bpf.symbols.{key}")).cloned();
    assert_eq!(count("named"), Some(tail.naming.named.to_string()));
    assert_eq!(names.len() as u64, tail.naming.named);
    assert_eq!(metadata["segment.complete"], "true");
    (names, tail)
}

/// Where in the file the code is, and its address less that.
fn code_of(program: &Path) -> (std::ops::Range<u64>, u64) {
    let text = output(Command::new("readelf").arg("-lW").arg(program));
    let line = text.lines().find(|line| line.contains("R E"));
    let hex = |text: &str| u64::from_str_radix(&text[2..], 16).expect("a number");
    let fields: Vec<&str> = line.expect("it has code").split_whitespace().collect();
    let (offset, address, length) = (hex(fields[1]), hex(fields[2]), hex(fields[4]));
    (offset..offset + length, address - offset)
}

/// Functions of a program: address, size, and every name at that address, demangled.
fn functions(program: &Path) -> BTreeMap<u64, (u64, BTreeSet<String>)> {
    let text = output(
        Command::new("nm")
            .args(["-SC", "--defined-only"])
            .arg(program),
    );
    let mut functions: BTreeMap<u64, (u64, BTreeSet<String>)> = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.splitn(4, ' ');
        let mut field = || fields.next().unwrap_or_default();
        let hex = |text| u64::from_str_radix(text, 16);
        let (Ok(address), Ok(size)) = (hex(field()), hex(field())) else {
            continue;
        };
        if matches!(field(), "t" | "T" | "w" | "W") && size > 0 {
            let known = functions.entry(address).or_default();
            known.0 = known.0.max(size);
            known.1.insert(without_hash(field()).to_owned());
        }
    }
    functions
}

fn without_hash(name: &str) -> &str {
    match name.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 => name,
        _ => name,
    }
}

fn output(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stripped(program: &Path, dir: &TempDir) -> (PathBuf, PathBuf) {
    let [program_only, debug_file] = ["alone", "debug"].map(|name| dir.path().join(name));
    let objcopy = |option: &str, to: &Path| {
        output(Command::new("objcopy").arg(option).arg(program).arg(to));
    };
    objcopy("--strip-all", &program_only);
    objcopy("--only-keep-debug", &debug_file);
    (program_only, debug_file)
}

/// Builds [`TWIN`] with debug information; the same name is the same program.
fn twin(dir: &TempDir) -> PathBuf {
    let (source, program) = (dir.path().join("twin.rs"), dir.path().join("twin"));
    fs::write(&source, TWIN).expect("there is room");
    let mut rustc = Command::new("rustc");
    rustc.args([
        "-O",
        "-g",
        "-C",
        "symbol-mangling-version=v0",
        "--edition=2024",
        "-o",
    ]);
    output(rustc.arg(&program).arg(&source));
    program
}

#[test]
fn every_function_of_a_program_has_the_name_that_its_symbol_has() {
    require_root();
    let program = test_program("serve", Build::Plain).expect("it can be built");
    let (range, bias) = code_of(&program);
    let functions = functions(&program);
    assert!(functions.len() > 1000);
    let middles: BTreeMap<u64, &BTreeSet<String>> = functions
        .iter()
        .filter(|(address, _)| range.contains(&(**address - bias)))
        .map(|(address, (size, names))| (BASE + address - bias + size / 2, names))
        .collect();
    let addresses: Vec<u64> = middles.keys().copied().collect();
    let placed = [mapped(&program)];
    let mut symbolizer = symbolizer(DebugInfo::Never);
    let (names, tail) = named(&mut symbolizer, &addresses, &placed);
    let mut right = 0;
    for (address, expected) in &middles {
        // What binutils does not demangle as Rust does is told apart by no test here.
        let [only] = &names[address][..] else {
            panic!("{address:x} is one function")
        };
        assert_eq!((only.file.as_str(), only.line), ("", 0));
        right += usize::from(expected.contains(&only.name));
    }
    // Binutils writes some generic arguments of legacy names another way.
    assert!(
        right * 100 >= middles.len() * 99,
        "{right} of {}",
        middles.len()
    );
    let (again, from_cache) = named(&mut symbolizer, &addresses, &placed);
    assert!(again == names && from_cache.bytes == tail.bytes);
    assert_eq!(from_cache.helper_kib, 0);
}

#[test]
fn what_was_inlined_comes_with_its_depth_and_its_lines() {
    require_root();
    let dir = output_dir();
    let program = twin(&dir);
    let (_, bias) = code_of(&program);
    let functions = functions(&program);
    let is_it = |names: &BTreeSet<String>| names.iter().any(|name| name == "twin::outermost");
    let outermost = functions.iter().find(|(_, (_, names))| is_it(names));
    let (&start, &(size, _)) = outermost.expect("it is not inlined");
    let addresses: Vec<u64> = (start..start + size).collect();
    let callchain: Vec<u64> = addresses
        .iter()
        .map(|address| BASE + address - bias)
        .collect();
    let mut symbolizer = symbolizer(DebugInfo::Auto);
    let (names, _) = named(&mut symbolizer, &callchain, &[mapped(&program)]);
    let mut deepest = 0;
    for (address, expected) in addresses.iter().zip(addr2line(&program, &addresses)) {
        let found = &names[&(BASE + address - bias)];
        let found: Vec<(String, u64)> = found
            .iter()
            .map(|named| (named.name.clone(), named.line))
            .collect();
        assert_eq!(found, expected, "{address:x}");
        deepest = deepest.max(found.len());
    }
    assert!(deepest >= 3, "{deepest}");
    // The same from a file of its own, and nothing from what is left.
    let (alone, debug_file) = stripped(&program, &dir);
    let file = CodeFile::new(File::open(&alone).expect("there")).expect("a program");
    let debug_file = File::open(debug_file).expect("there");
    let parted = Placed {
        file: Some(Arc::new(file.with_debug_file(debug_file, false))),
        ..mapped(&alone)
    };
    let (from_parted, _) = named(
        &mut self::symbolizer(DebugInfo::Auto),
        &callchain,
        &[parted],
    );
    assert_eq!(from_parted, names);
    let (from_rest, tail) = named(
        &mut self::symbolizer(DebugInfo::Auto),
        &callchain,
        &[mapped(&alone)],
    );
    assert!(from_rest.is_empty(), "{from_rest:?}");
    assert_eq!(tail.naming.unnamed.values().sum::<u64>(), size);
}

/// What binutils has at each address: names and lines, outermost first.
fn addr2line(program: &Path, addresses: &[u64]) -> Vec<Vec<(String, u64)>> {
    let mut addr2line = Command::new("addr2line");
    addr2line.args(["-afiC", "-e"]).arg(program);
    addr2line.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = addr2line.spawn().expect("there is addr2line");
    let asked: Vec<String> = addresses.iter().map(|at| format!("{at:x}")).collect();
    let asked = asked.join(
        "
",
    ) + "
";
    let mut stdin = child.stdin.take().expect("it is piped");
    let asking = std::thread::spawn(move || stdin.write_all(asked.as_bytes()));
    let output = child.wait_with_output().expect("it ends");
    asking.join().expect("it ends").expect("it listens");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut all: Vec<Vec<(String, u64)>> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            all.push(Vec::new());
            continue;
        }
        let place = lines.next().unwrap_or_default();
        let number = place.rsplit(':').next().unwrap_or_default();
        let number = number
            .split(' ')
            .next()
            .and_then(|number| number.parse().ok());
        let functions = all.last_mut().expect("an address first");
        functions.insert(0, (line.to_owned(), number.unwrap_or(0)));
    }
    all
}

#[test]
fn the_kernels_functions_have_the_names_of_its_table() {
    require_root();
    let table = fs::read_to_string("/proc/kallsyms").expect("there is a kernel");
    let mut functions: Vec<(u64, &str)> = Vec::new();
    for line in table.lines() {
        let mut fields = line.split_ascii_whitespace();
        let mut field = || fields.next().unwrap_or_default();
        let address = u64::from_str_radix(field(), 16).expect("a number");
        if let ("T" | "t", name) = (field(), field()) {
            functions.push((address, name));
        }
    }
    let wanted = ["do_sys_poll", "schedule", "tcp_sendmsg"];
    let at = |wanted: &&str| functions.iter().find(|(_, name)| name == wanted);
    let found: Vec<(u64, &str)> = wanted.iter().filter_map(at).copied().collect();
    assert_eq!(found.len(), wanted.len());
    let addresses: Vec<u64> = found.iter().map(|(address, _)| address + 4).collect();
    let nowhere = Mapping::default();
    let placed = Placed {
        mapping: nowhere,
        file: None,
    };
    let (names, _) = named(&mut symbolizer(DebugInfo::Auto), &addresses, &[placed]);
    for (address, name) in found {
        assert_eq!(names[&(address + 4)][0].name, name);
    }
}

#[test]
fn a_file_that_is_gone_still_gives_names_and_one_that_is_broken_costs_its_own() {
    require_root();
    let dir = output_dir();
    let program = dir.path().join("program");
    let built = |name| test_program(name, Build::Plain).expect("it can be built");
    fs::copy(built("serve"), &program).expect("there is room");
    let (range, _) = code_of(&program);
    let addresses: Vec<u64> = range.step_by(512).map(|at| BASE + at).take(500).collect();
    let gone = mapped(&program);
    let (expected, tail) = named(
        &mut symbolizer(DebugInfo::Never),
        &addresses,
        std::slice::from_ref(&gone),
    );
    assert!(tail.naming.named > 400, "{:?}", tail.naming);
    fs::remove_file(&program).expect("it is there");
    let (names, _) = named(
        &mut symbolizer(DebugInfo::Never),
        &addresses,
        std::slice::from_ref(&gone),
    );
    assert_eq!(names, expected);
    for how in [Harm::Cut, Harm::Garbled, Harm::Holes] {
        let broken = dir.path().join(format!("{how:?}"));
        fs::copy(built("steady"), &broken).expect("there is room");
        let placed = mapped(&broken);
        how.to(&broken);
        let far = 1 << 40;
        let mapping = Mapping {
            start: BASE + far,
            end: placed.mapping.end + far,
            inode: 2,
            ..placed.mapping.clone()
        };
        let both = [gone.clone(), Placed { mapping, ..placed }];
        let addresses: Vec<u64> = addresses
            .iter()
            .flat_map(|address| [*address, address + far])
            .collect();
        let (names, tail) = named(&mut symbolizer(DebugInfo::Never), &addresses, &both);
        let whole: Vec<&str> = expected.values().map(|of| of[0].name.as_str()).collect();
        let found: Vec<&str> = (names.range(..BASE + far))
            .map(|(_, of)| of[0].name.as_str())
            .collect();
        assert_eq!(found, whole, "{how:?}");
        let unnamed: u64 = tail.naming.unnamed.values().sum();
        assert_eq!(tail.naming.named + unnamed, addresses.len() as u64);
        assert!(unnamed > 0, "{how:?}: {:?}", tail.naming);
    }
}

/// What becomes of a file while it is mapped.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Cut,
    Garbled,
    Holes,
}

impl Harm {
    fn to(self, path: &Path) {
        let file = fs::OpenOptions::new().write(true).open(path);
        let mut file = file.expect("it is ours");
        let bytes = file.metadata().expect("it is there").len();
        match self {
            // The headers stay, so that the helper meets what is missing.
            Self::Cut => file.set_len(bytes / 2).expect("it is ours"),
            Self::Garbled => {
                use std::io::{Seek as _, SeekFrom};
                let noise: Vec<u8> = (0..bytes / 2).map(|at| (at * 37 % 251) as u8).collect();
                file.seek(SeekFrom::Start(bytes / 2)).expect("it has it");
                file.write_all(&noise).expect("there is room");
            }
            Self::Holes => {
                file.set_len(bytes / 2).expect("it is ours");
                file.set_len(bytes).expect("it is ours");
            }
        }
    }
}

#[test]
fn a_recording_has_names_although_its_target_and_the_file_are_gone() {
    require_root();
    let built = test_program("steady", Build::Plain).expect("it can be built");
    let dir = output_dir();
    let program = dir.path().join("gone");
    fs::copy(&built, &program).expect("there is room");
    let mut steady = TestProgram::start_at(&program, |command| {
        command.arg(dir.path().join("facts")).arg("50000");
    });
    let output = output_dir();
    let tracer = Attach::to(steady.pid(), output.path())
        .arg("--cpu-hz=999")
        .attached();
    fs::remove_file(&program).expect("it is there");
    steady.say("go");
    assert_eq!(steady.hear(), "going");
    let has_worked = || (proc::cpu_ms(steady.pid()) > 500).then_some(());
    wait::until("it has worked", has_worked);
    steady.say("rest");
    steady.hear_until("resting");
    assert!(steady.exit().success());
    tracer.outcome().expect(0);
    let path = sealed_segments(output.path()).remove(0);
    let segment = unpacked(&path).expect("it is whole");
    let (names, metadata) = names(&segment);
    let told: Vec<(String, String)> = metadata.clone().into_iter().collect();
    let of_program = |mapping: &Mapping| mapping.path == program.display().to_string();
    let mapping = Mapping::told(&told).into_iter().find(of_program);
    let mapping = mapping.expect("it is told");
    let (_, bias) = code_of(&built);
    let functions = functions(&built);
    let mut seen = 0;
    for (address, found) in names.iter().filter(|(address, _)| mapping.has(**address)) {
        let address = address - mapping.start + mapping.offset + bias;
        let (start, (size, expected)) = functions.range(..=address).next_back().expect("one");
        assert!(address < start + size && expected.contains(&found[0].name));
        seen += 1;
    }
    assert!(seen > 0);
    assert_eq!(metadata["dial9-bpf.symbols.named"], names.len().to_string());
    viewer::check(&path).unwrap_or_else(|error| panic!("{error:#}"));
}

#[test]
fn what_the_helper_dies_of_costs_names_only() {
    require_root();
    let program = tracer_binary().expect("it is built");
    let (range, _) = code_of(&program);
    let addresses: Vec<u64> = range.step_by(4096).map(|at| BASE + at).take(50).collect();
    for (helper, args) in [("/bin/false", ""), ("/bin/cat", "/dev/zero"), ("/none", "")] {
        let helper = Helper {
            program: helper.into(),
            args: vec![args.into()],
        };
        let mut symbolizer = Symbolizer::new(helper, DebugInfo::Auto);
        let (names, tail) = named(&mut symbolizer, &addresses, &[mapped(&program)]);
        assert!(names.is_empty());
        assert_eq!(tail.naming.unnamed.values().sum::<u64>(), 50);
    }
}
