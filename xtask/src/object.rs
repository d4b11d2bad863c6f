//! What the kernel object must be.
//!
//! In: the bytes of an ELF file. Out: what it holds, or what is wrong with it.
//! It reads just enough of the format for that; the loader checks the rest.

mod stack;

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};

/// The programs of the kernel object: uprobes at Tokio's sites and at panics, and
/// tracepoints on switches, wakes, forks, exits, signals, execs, the states of sockets,
/// block I/O and syncs, the one at declared probes, the iterator over the target's files, and the profile's clock.
pub(crate) const PROGRAMS: [&str; 29] = [
    "accept_queues",
    "block_bio_backmerge",
    "block_bio_complete",
    "block_bio_frontmerge",
    "block_bio_queue",
    "block_on",
    "block_on_end",
    "cpu_sample",
    "block_rq_complete",
    "block_rq_issue",
    "declared",
    "ext4_sync_file_enter",
    "ext4_sync_file_exit",
    "inet_sock_set_state",
    "panic_location",
    "panic_message",
    "park",
    "poll_end",
    "poll_start",
    "sched_process_exec",
    "sched_process_exit",
    "sched_process_fork",
    "sched_switch",
    "sched_waking",
    "signal_deliver",
    "spawn",
    "terminate",
    "unpark",
    "wake",
];

/// Helpers that read user memory are for GPL-compatible programs only.
const LICENSE: &[u8] = b"Dual MIT/GPL\0";
/// Twice what the programs and their debug information need; more means that something
/// else got in.
const MAX_BYTES: usize = 2 << 20;

const EM_BPF: u16 = 247;
const SHT_SYMTAB: u32 = 2;
const SHF_EXECINSTR: u64 = 4;
const STT_FUNC: u8 = 2;

/// What a good object holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    /// `section name`, one for each program.
    pub(crate) programs: Vec<String>,
    /// Bytes of BTF.
    pub(crate) btf_bytes: usize,
}

struct Section<'a> {
    name: &'a str,
    kind: u32,
    flags: u64,
    bytes: &'a [u8],
}

/// Checks a kernel object.
pub(crate) fn check(object: &[u8]) -> Result<Contents> {
    ensure!(
        object.len() <= MAX_BYTES,
        "{} bytes, more than {MAX_BYTES}",
        object.len()
    );
    ensure!(
        object.starts_with(b"\x7fELF\x02\x01"),
        "not a 64-bit little-endian ELF file"
    );
    let machine = u16_at(object, 18)?;
    ensure!(machine == EM_BPF, "ELF machine {machine}, not BPF");
    let sections = sections(object)?;
    let license = section(&sections, "license")?;
    ensure!(license.bytes == LICENSE, "the licence is not {LICENSE:?}");
    let btf_bytes = section(&sections, ".BTF")?.bytes.len();
    section(&sections, ".BTF.ext")?;
    for section in &sections {
        if stack::SECTIONS.contains(&section.name) {
            stack::check(section.name, section.bytes)?;
        }
    }
    Ok(Contents {
        programs: programs(&sections)?,
        btf_bytes,
    })
}

fn section<'s, 'a>(sections: &'s [Section<'a>], name: &str) -> Result<&'s Section<'a>> {
    sections
        .iter()
        .find(|section| section.name == name && !section.bytes.is_empty())
        .with_context(|| format!("no section {name}"))
}

/// Function symbols in program sections. Functions that programs call are in
/// `.text`.
fn programs(sections: &[Section<'_>]) -> Result<Vec<String>> {
    let symbols = sections
        .iter()
        .position(|section| section.kind == SHT_SYMTAB)
        .context("no symbol table")?;
    let names = section(sections, ".strtab")?.bytes;
    let mut found = BTreeSet::new();
    let mut programs = Vec::new();
    for symbol in sections[symbols].bytes.chunks_exact(24) {
        let section = sections.get(usize::from(u16_at(symbol, 6)?));
        let Some(section) = section.filter(|it| it.flags & SHF_EXECINSTR != 0) else {
            continue;
        };
        if symbol[4] & 0xf != STT_FUNC || section.name == ".text" {
            continue;
        }
        let name = text_at(names, u32_at(symbol, 0)?)?;
        found.insert(name);
        programs.push(format!("{} {name}", section.name));
    }
    let expected = BTreeSet::from(PROGRAMS);
    let absent: Vec<_> = expected.difference(&found).collect();
    let extra: Vec<_> = found.difference(&expected).collect();
    if !absent.is_empty() || !extra.is_empty() {
        bail!("programs missing: {absent:?}, not expected: {extra:?}");
    }
    programs.sort();
    Ok(programs)
}

fn sections(object: &[u8]) -> Result<Vec<Section<'_>>> {
    let table = usize::try_from(u64_at(object, 40)?)?;
    let entry_bytes = usize::from(u16_at(object, 58)?);
    let count = usize::from(u16_at(object, 60)?);
    let names_index = usize::from(u16_at(object, 62)?);
    let headers: Vec<&[u8]> = (0..count)
        .map(|index| slice(object, table + index * entry_bytes, 64))
        .collect::<Result<_>>()?;
    let names = contents(
        object,
        headers
            .get(names_index)
            .context("no section of section names")?,
    )?;
    headers
        .iter()
        .map(|header| {
            Ok(Section {
                name: text_at(names, u32_at(header, 0)?)?,
                kind: u32_at(header, 4)?,
                flags: u64_at(header, 8)?,
                bytes: contents(object, header)?,
            })
        })
        .collect()
}

fn contents<'a>(object: &'a [u8], header: &[u8]) -> Result<&'a [u8]> {
    const SHT_NOBITS: u32 = 8;
    if u32_at(header, 4)? == SHT_NOBITS {
        return Ok(&[]);
    }
    let offset = usize::try_from(u64_at(header, 24)?)?;
    slice(object, offset, usize::try_from(u64_at(header, 32)?)?)
}

fn text_at(names: &[u8], offset: u32) -> Result<&str> {
    let rest = names
        .get(usize::try_from(offset)?..)
        .context("a name lies outside its table")?;
    let end = rest
        .iter()
        .position(|byte| *byte == 0)
        .context("a name has no end")?;
    Ok(str::from_utf8(&rest[..end])?)
}

fn slice(bytes: &[u8], offset: usize, length: usize) -> Result<&[u8]> {
    offset
        .checked_add(length)
        .and_then(|end| bytes.get(offset..end))
        .with_context(|| format!("{length} bytes at {offset} lie outside the file"))
}

fn u16_at(bytes: &[u8], offset: usize) -> Result<u16> {
    Ok(u16::from_le_bytes(slice(bytes, offset, 2)?.try_into()?))
}

fn u32_at(bytes: &[u8], offset: usize) -> Result<u32> {
    Ok(u32::from_le_bytes(slice(bytes, offset, 4)?.try_into()?))
}

fn u64_at(bytes: &[u8], offset: usize) -> Result<u64> {
    Ok(u64::from_le_bytes(slice(bytes, offset, 8)?.try_into()?))
}

#[cfg(test)]
mod tests {
    use super::{EM_BPF, LICENSE, PROGRAMS, SHF_EXECINSTR, SHT_SYMTAB, STT_FUNC, check};

    /// A kernel object with these programs and this licence.
    fn object(programs: &[&str], license: &[u8]) -> Vec<u8> {
        let mut names = vec![0];
        let mut symbols = vec![0; 24];
        for program in programs {
            symbols.extend(u32::try_from(names.len()).unwrap().to_le_bytes());
            symbols.extend([STT_FUNC, 0, 1, 0]);
            symbols.extend([0; 16]);
            names.extend(program.as_bytes());
            names.push(0);
        }
        let code = SHF_EXECINSTR;
        let sections: [(&str, u32, u64, &[u8]); 6] = [
            ("uprobe.s", 1, code, &[0; 8]),
            ("license", 1, 0, license),
            (".BTF", 1, 0, &[1; 4]),
            (".BTF.ext", 1, 0, &[1; 4]),
            (".strtab", 3, 0, &names),
            (".symtab", SHT_SYMTAB, 0, &symbols),
        ];
        elf(&sections)
    }

    fn elf(sections: &[(&str, u32, u64, &[u8])]) -> Vec<u8> {
        let mut file = b"\x7fELF\x02\x01".to_vec();
        file.resize(64, 0);
        file[18..20].copy_from_slice(&EM_BPF.to_le_bytes());
        let mut names = vec![0];
        let mut headers = vec![0; 64];
        let mut add = |file: &mut Vec<u8>, name_at: usize, kind: u32, flags: u64, bytes: &[u8]| {
            headers.extend(u32::try_from(name_at).unwrap().to_le_bytes());
            headers.extend(kind.to_le_bytes());
            headers.extend(flags.to_le_bytes());
            headers.extend([0; 8]);
            headers.extend(u64::try_from(file.len()).unwrap().to_le_bytes());
            headers.extend(u64::try_from(bytes.len()).unwrap().to_le_bytes());
            headers.extend([0; 24]);
            file.extend(bytes);
        };
        for (name, kind, flags, bytes) in sections {
            add(&mut file, names.len(), *kind, *flags, bytes);
            names.extend(name.as_bytes());
            names.push(0);
        }
        add(&mut file, 0, 3, 0, &names);
        let table = u64::try_from(file.len()).unwrap();
        let count = u16::try_from(headers.len() / 64).unwrap();
        file.extend(headers);
        file[40..48].copy_from_slice(&table.to_le_bytes());
        file[58..60].copy_from_slice(&64_u16.to_le_bytes());
        file[60..62].copy_from_slice(&count.to_le_bytes());
        file[62..64].copy_from_slice(&(count - 1).to_le_bytes());
        file
    }

    #[track_caller]
    fn refused(object: &[u8], because: &str) {
        let error = format!("{:#}", check(object).unwrap_err());
        assert!(error.contains(because), "{error}");
    }

    #[test]
    fn a_whole_object_passes() {
        let contents = check(&object(&PROGRAMS, LICENSE)).unwrap();
        assert_eq!(contents.programs.len(), PROGRAMS.len());
        assert_eq!(contents.programs[0], "uprobe.s accept_queues");
        assert_eq!(contents.btf_bytes, 4);
    }

    #[test]
    fn a_program_too_few_or_too_many_is_refused() {
        refused(
            &object(&PROGRAMS[1..], LICENSE),
            "missing: [\"accept_queues\"]",
        );
        let more = [&PROGRAMS[..], &["new"]].concat();
        refused(&object(&more, LICENSE), "not expected: [\"new\"]");
    }

    #[test]
    fn another_licence_is_refused() {
        refused(&object(&PROGRAMS, b"MIT\0"), "licence");
    }

    #[test]
    fn an_object_cut_anywhere_is_refused() {
        let whole = object(&PROGRAMS, LICENSE);
        for length in 0..whole.len() {
            assert!(check(&whole[..length]).is_err(), "{length}");
        }
    }
}
