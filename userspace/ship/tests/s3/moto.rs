//! Another server of S3, which somebody else wrote: moto's.
//!
//! In: the virtual environment of `cargo xtask setup`. Out: the same as of the
//! server in this process. Never: a test that is skipped; without the
//! environment it fails. Its server does not check signatures.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use futures_util::TryStreamExt as _;
use object_store::{
    Attribute, Attributes, GetResult, ObjectStore as _, ObjectStoreExt as _,
    aws::{AmazonS3, AmazonS3Builder},
};
use tokio::runtime::Runtime;

use crate::proxy::{Fault, Proxy};
use crate::rig::{Rig, Served};
use crate::server::{BUCKET, KEY_ID, SECRET};
use crate::{faults, puts};

const PROGRAM: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../target/moto/bin/moto_server"
);

struct Moto {
    process: Child,
    address: SocketAddr,
    runtime: Runtime,
    client: AmazonS3,
}

impl Moto {
    fn spawn() -> Self {
        assert!(
            Path::new(PROGRAM).is_file(),
            "no {PROGRAM}: run cargo xtask setup"
        );
        let mut process = Command::new(PROGRAM)
            .args(["--host", "127.0.0.1", "--port", "0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let address = address(&mut process);
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = AmazonS3Builder::new()
            .with_endpoint(format!("http://{address}"))
            .with_allow_http(true)
            .with_bucket_name(BUCKET)
            .with_region("us-east-1")
            .with_access_key_id(KEY_ID)
            .with_secret_access_key(SECRET)
            .build()
            .unwrap();
        let runtime = Runtime::new().unwrap();
        runtime.block_on(make_bucket(address));
        Self {
            process,
            address,
            runtime,
            client,
        }
    }
}

/// It says where it listens, and later each request.
fn address(process: &mut Child) -> SocketAddr {
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let said = |line: &str| line.split_once("http://")?.1.trim().parse().ok();
    let address = lines.by_ref().find_map(|line| said(&line.unwrap()));
    thread::spawn(move || lines.for_each(drop));
    address.expect("it says where it listens")
}

async fn make_bucket(address: SocketAddr) {
    let bucket = format!("http://{address}/{BUCKET}");
    let made = reqwest::Client::new().put(bucket).send().await.unwrap();
    assert!(made.status().is_success(), "{made:?}");
}

impl Moto {
    /// What `read` makes of every object.
    fn each<T, F: Future<Output = T>>(&self, read: impl Fn(GetResult) -> F) -> Vec<T> {
        self.runtime.block_on(async {
            let mut made = Vec::new();
            let mut listed = self.client.list(None);
            while let Some(found) = listed.try_next().await.unwrap() {
                let got = self.client.get(&found.location).await.unwrap();
                made.push(read(got).await);
            }
            made
        })
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Served for Moto {
    fn start(_: &Runtime) -> Self {
        Self::spawn()
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn objects(&self) -> BTreeMap<String, Vec<u8>> {
        let read = |got: GetResult| async {
            let key = got.meta.location.to_string();
            (key, got.bytes().await.unwrap().to_vec())
        };
        self.each(read).into_iter().collect()
    }

    fn attributes(&self) -> Vec<String> {
        self.each(|got| async move { said_of(&got.attributes) })
    }
}

/// As the server in this process keeps it.
fn said_of(attributes: &Attributes) -> String {
    let mut said = String::new();
    for (attribute, value) in attributes {
        let name = match attribute {
            Attribute::Metadata(name) => name,
            Attribute::ContentType => "content_type",
            Attribute::ContentEncoding => "content_encoding",
            other => panic!("{other:?}: {value:?}"),
        };
        let _ = write!(said, "\"{name}\":\"{}\",", value.as_ref());
    }
    said
}

#[test]
fn segments_arrive_with_what_dial9_says_of_them() {
    puts::check_arrival(Rig::<Moto>::new(Proxy::planned([], Fault::Pass)));
}

#[test]
fn a_refusal_that_is_fixed_loses_nothing() {
    puts::check_denial(Rig::<Moto>::new);
}

#[test]
fn a_store_that_is_not_there_yet() {
    faults::check_absence(Rig::<Moto>::without_listener(Proxy::planned(
        [],
        Fault::Pass,
    )));
}
