//! What opens, and what failures are taken for. Nobody is called.

use super::*;

fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
    pairs.iter().map(owned).collect()
}

fn open(options: &StoreOptions, pairs: &[(&str, &str)]) -> Result<StoreSink, OpenError> {
    let destination = "s3://bucket/prefix".parse().unwrap();
    StoreSink::open(&destination, options, env(pairs))
}

fn at(endpoint: &str) -> StoreOptions {
    StoreOptions {
        endpoint: Some(endpoint.to_owned()),
        ..StoreOptions::default()
    }
}

#[test]
fn plain_http_stays_on_the_machine_unless_the_environment_says_so() {
    for endpoint in [
        "http://127.0.0.1:9000",
        "http://localhost/x",
        "http://[::1]:9000",
        "https://minio.example:9000",
    ] {
        open(&at(endpoint), &[]).unwrap();
    }
    for endpoint in [
        "http://minio.example:9000",
        "http://127.0.0.1.example",
        "http://localhost.example:80",
        "http://user@127.0.0.1@evil.example",
    ] {
        let error = open(&at(endpoint), &[]).unwrap_err();
        assert!(matches!(error, OpenError::Insecure { .. }), "{endpoint}");
    }
    open(
        &StoreOptions::default(),
        &[("AWS_ENDPOINT_URL", "http://minio.example:9000")],
    )
    .unwrap();
}

#[test]
fn half_of_a_key_pair_is_said_at_once() {
    let error = open(
        &StoreOptions::default(),
        &[("AWS_ACCESS_KEY_ID", "only half")],
    )
    .unwrap_err();
    assert!(matches!(error, OpenError::Settings { .. }), "{error}");
}

#[test]
fn certificates_are_read_when_opening() {
    let dir = tempfile::tempdir().unwrap();
    let ca_file = dir.path().join("ca.pem");
    let options = StoreOptions {
        ca_file: Some(ca_file.clone()),
        ..StoreOptions::default()
    };
    for content in [None, Some("no certificate")] {
        if let Some(content) = content {
            std::fs::write(&ca_file, content).unwrap();
        }
        let error = open(&options, &[]).unwrap_err();
        assert!(matches!(error, OpenError::Certificates { .. }), "{error}");
    }
}

#[tokio::test]
async fn credentials_differ_by_key_and_token() {
    let number = async |id, token| {
        let pairs = [
            ("AWS_ACCESS_KEY_ID", id),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_SESSION_TOKEN", token),
        ];
        let sink = open(&StoreOptions::default(), &pairs).unwrap();
        sink.credentials().await.unwrap()
    };
    assert_eq!(number("a", "t").await, number("a", "t").await);
    assert_ne!(number("a", "t").await, number("b", "t").await);
    assert_ne!(number("a", "t").await, number("a", "u").await);
}

#[test]
fn failures_are_taken_for_what_they_are() {
    let generic = |text: &str| object_store::Error::Generic {
        store: "S3",
        source: text.into(),
    };
    for (answer, text, retryable, status) in [
        (Answer::NoReply, "refused", true, None),
        (Answer::Status(500), "", true, Some(500)),
        (Answer::Status(503), "", true, Some(503)),
        (Answer::Status(599), "", true, Some(599)),
        (Answer::Status(429), "", true, Some(429)),
        (Answer::Status(408), "", true, Some(408)),
        (Answer::Status(200), "cut", true, Some(200)),
        (
            Answer::Status(400),
            "<Code>RequestTimeout</Code>",
            true,
            Some(400),
        ),
        (
            Answer::Status(400),
            "<Code>ExpiredToken</Code>",
            false,
            Some(400),
        ),
        (Answer::Status(301), "", false, Some(301)),
        (Answer::Status(403), "", false, Some(403)),
        (Answer::Status(404), "", false, Some(404)),
        (Answer::Status(413), "", false, Some(413)),
        (Answer::NotAsked, "disk full", true, None),
    ] {
        let error = classify(generic(text), answer);
        assert_eq!(
            (error.retryable, error.status),
            (retryable, status),
            "{answer:?} {text}"
        );
    }
    let denied = object_store::Error::PermissionDenied {
        path: "p".into(),
        source: "s".into(),
    };
    assert!(!classify(denied, Answer::NotAsked).retryable);
}

#[test]
fn codes_are_taken_from_the_answer() {
    for (text, code) in [
        ("x <Error><Code>SlowDown</Code></Error>", Some("SlowDown")),
        ("<Code></Code>", None),
        ("<Code>a b</Code>", None),
        ("<Code>Open", None),
        ("none", None),
    ] {
        assert_eq!(code_in(text).as_deref(), code, "{text}");
    }
}

#[tokio::test]
async fn a_directory_gets_the_bytes_at_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let destination = format!("file://{}/new/spool", dir.path().display());
    let sink = StoreSink::open(
        &destination.parse().unwrap(),
        &StoreOptions::default(),
        env(&[]),
    )
    .unwrap();
    let key = "version=1/service=a%2Fb%23 é/7-3.bin.gz";
    for content in ["first", "second"] {
        sink.put(Object {
            key: key.to_owned(),
            content_type: "application/gzip",
            metadata: vec![("service", "a".to_owned())],
            bytes: content.into(),
        })
        .await
        .unwrap();
        let path = dir.path().join("new/spool").join(key);
        assert_eq!(std::fs::read_to_string(path).unwrap(), content);
    }
    assert_eq!(sink.credentials().await, None);
}
