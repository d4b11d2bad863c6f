//! A server of S3, with a bucket for the segments.
//!
//! In: nothing; moto's server is what `cargo xtask setup` installs. Out: the
//! environment that leads there, and the objects. Its server takes any signature.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::listening::Listening;
use crate::shell;

/// The bucket. The viewer proposes those with dial9 in their names.
pub(super) const BUCKET: &str = "dial9-traces";
/// Objects that are read may have this size, bytes.
const MOST_BYTES: u64 = 1 << 30;
/// What is not signed at all may not read.
const SIGNED: (&str, &str) = (
    "Authorization",
    "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0",
);

/// The server.
pub(super) struct Store(Listening);

impl Store {
    /// Starts the server and makes the bucket.
    pub(super) fn start(folder: &Path) -> Result<Self> {
        let server = Listening::start(&folder.join("moto.log"), |port| {
            let mut command = Command::new(shell::root().join("target/moto/bin/moto_server"));
            command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
            command
        })?;
        let bucket = format!("{}/{BUCKET}", server.url);
        server
            .agent
            .put(&bucket)
            .send_empty()
            .with_context(|| format!("PUT {bucket}"))?;
        Ok(Self(server))
    }

    /// What leads an S3 client here.
    pub(super) fn environment(&self) -> [(&'static str, &str); 4] {
        [
            ("AWS_ENDPOINT_URL", &self.0.url),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ]
    }

    /// The keys of all objects.
    pub(super) fn keys(&self) -> Result<Vec<String>> {
        let list = self.get("?list-type=2")?;
        let list = String::from_utf8(list).context("the list of objects")?;
        Ok(keys(&list))
    }

    /// An object.
    pub(super) fn object(&self, key: &str) -> Result<Vec<u8>> {
        self.get(&format!("/{}", super::escape(key)))
    }

    fn get(&self, rest: &str) -> Result<Vec<u8>> {
        let url = format!("{}/{BUCKET}{rest}", self.0.url);
        let (name, value) = SIGNED;
        let request = self.0.agent.get(&url).header(name, value);
        let mut response = request.call().with_context(|| format!("GET {url}"))?;
        let body = response.body_mut().with_config().limit(MOST_BYTES);
        body.read_to_vec().with_context(|| format!("GET {url}"))
    }
}

/// Our keys have nothing that XML escapes.
fn keys(list: &str) -> Vec<String> {
    list.split("<Key>")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once("</Key>")?.0.to_owned()))
        .collect()
}
