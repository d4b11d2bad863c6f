//! There and back; hostile and damaged input.

use std::os::unix::fs::PermissionsExt as _;

use proptest::prelude::*;

use super::*;

fn segment(bytes: usize) -> Vec<u8> {
    let mut content = SEGMENT_MAGIC.to_vec();
    content.extend((0..bytes).map(|at| at.wrapping_mul(at).to_le_bytes()[0]));
    content
}

fn round_trip(content: &[u8]) {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("a.bin"), content).unwrap();
    let chain = [
        ("a.bin", "a.bin.gz", Encoding::Gzip),
        ("a.bin.gz", "a.bin.zst", Encoding::Zstd),
        ("a.bin.zst", "b.bin.zst", Encoding::Zstd),
        ("b.bin.zst", "b.bin.gz", Encoding::Gzip),
        ("b.bin.gz", "b.bin", Encoding::Raw),
    ];
    for (from, to, encoding) in chain {
        let converted = convert(&path(from), &path(to), encoding).unwrap();
        assert_eq!(Encoding::of_name(&path(from)), Some(converted.from));
        assert_eq!(converted.raw_bytes, content.len() as u64);
        assert_eq!(converted.bytes, path(to).metadata().unwrap().len());
    }
    assert_eq!(std::fs::read(path("b.bin")).unwrap(), content);
    // One member: the decoder of one gives all.
    let member = File::open(path("b.bin.gz")).unwrap();
    let mut read = Vec::new();
    flate2::read::GzDecoder::new(member)
        .read_to_end(&mut read)
        .unwrap();
    assert_eq!(read, content);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 6);
}

#[test]
fn content_is_the_same_there_and_back() {
    round_trip(&segment(0));
    round_trip(&segment(3_000_000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn any_content_is_the_same_there_and_back(tail in prop::collection::vec(any::<u8>(), 0..5000)) {
        let mut content = SEGMENT_MAGIC.to_vec();
        content.extend(tail);
        round_trip(&content);
    }
}

#[test]
fn the_file_is_its_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("a.bin"), dir.path().join("a.bin.gz"));
    std::fs::write(&from, segment(10)).unwrap();
    convert(&from, &to, Encoding::Gzip).unwrap();
    assert_eq!(to.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn the_head_of_an_archive_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("a.bin"), dir.path().join("a.bin.zst"));
    for bytes in [10, 1 << 20] {
        let content = segment(bytes);
        std::fs::write(&from, &content).unwrap();
        convert(&from, &to, Encoding::Zstd).unwrap();
        let expected = content.len().min(usize::try_from(HEAD_BYTES).unwrap());
        assert_eq!(head_of_archive(&to).unwrap(), content[..expected]);
    }
    assert!(head_of_archive(&from).is_err());
}

fn check_fails(content: &[u8], kind: io::ErrorKind) {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("a"), dir.path().join("b"));
    std::fs::write(&from, content).unwrap();
    let error = convert(&from, &to, Encoding::Zstd).unwrap_err();
    assert_eq!(error.source.kind(), kind, "{error:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!(std::fs::read(&from).unwrap(), content);
}

#[test]
fn what_is_not_a_segment_is_refused() {
    check_fails(b"", io::ErrorKind::InvalidData);
    check_fails(b"PK\x03\x04", io::ErrorKind::InvalidData);
    let text = zstd::encode_all(&b"hello"[..], 1).unwrap();
    check_fails(&text, io::ErrorKind::InvalidData);
    let short = zstd::encode_all(&b"TR"[..], 1).unwrap();
    check_fails(&short, io::ErrorKind::UnexpectedEof);
}

/// A FIFO has no content before somebody writes to it.
#[test]
fn what_is_no_regular_file_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("trace.0.bin");
    let status = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(status.unwrap().success());
    let error = convert(&fifo, &dir.path().join("trace.0.bin.gz"), Encoding::Gzip).unwrap_err();
    assert_eq!(error.source.to_string(), "not a regular file");
    let error = head_of_archive(&fifo).unwrap_err();
    assert_eq!(error.to_string(), "not a regular file");
}

#[test]
fn what_is_cut_is_refused() {
    let mut member = GzEncoder::new(Vec::new(), Compression::fast());
    member.write_all(&segment(5000)).unwrap();
    let member = member.finish().unwrap();
    check_fails(&member[..member.len() - 1], io::ErrorKind::UnexpectedEof);
    let frame = zstd::encode_all(&segment(5000)[..], 1).unwrap();
    check_fails(&frame[..frame.len() - 1], io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_window_beyond_the_bound_is_refused() {
    let mut frame = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    frame.window_log(ZSTD_WINDOW_LOG + 1).unwrap();
    frame.write_all(&segment(1 << 24)).unwrap();
    check_fails(&frame.finish().unwrap(), io::ErrorKind::Other);
}

#[test]
fn a_left_over_is_no_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("a.bin"), dir.path().join("a.bin.gz"));
    std::fs::write(&from, segment(10)).unwrap();
    std::fs::write(dir.path().join("a.bin.gz.tmp"), b"torn").unwrap();
    convert(&from, &to, Encoding::Gzip).unwrap();
    assert!(!dir.path().join("a.bin.gz.tmp").exists());
}

#[test]
fn the_new_file_takes_the_place_of_the_old() {
    let dir = tempfile::tempdir().unwrap();
    let raw = dir.path().join("a.bin");
    std::fs::write(&raw, segment(10)).unwrap();
    let archive = Encoding::Zstd.rename(&raw).unwrap();
    replace(&raw, &archive, Encoding::Zstd, &[]).unwrap();
    assert!(!raw.exists());
    assert_eq!(Encoding::Raw.rename(&archive), Some(raw.clone()));
    replace(&archive, &raw, Encoding::Raw, &[]).unwrap();
    assert!(!archive.exists());
    assert_eq!(std::fs::read(&raw).unwrap(), segment(10));
}

#[test]
fn a_damaged_file_keeps_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("a.bin.gz"), dir.path().join("a.bin"));
    std::fs::write(&from, GZIP_MAGIC).unwrap();
    replace(&from, &to, Encoding::Raw, &[]).unwrap_err();
    assert!(from.exists() && !to.exists());
}

#[test]
fn names_promise_encodings() {
    for (name, encoding) in [
        ("trace.0.bin", Some(Encoding::Raw)),
        ("trace.0.bin.gz", Some(Encoding::Gzip)),
        ("trace.0.bin.zst", Some(Encoding::Zstd)),
        ("trace.0.bin.active", None),
        ("trace.0.bin.gz.tmp", None),
        ("notes.gz", None),
    ] {
        let path = Path::new(name);
        assert_eq!(Encoding::of_name(path), encoding, "{name}");
        let archive = encoding.map(|_| PathBuf::from("trace.0.bin.zst"));
        assert_eq!(Encoding::Zstd.rename(path), archive, "{name}");
    }
}
