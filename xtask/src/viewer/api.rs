//! dial9's viewer before a store.
//!
//! In: the store, and which of its objects are meant. Out: the objects and
//! aggregates that the viewer's own HTTP interface gives.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::segment::Segment;
use super::store::{BUCKET, Store};
use super::{Upload, escape};
use crate::listening::Listening;
use crate::shell;

const MOST_BYTES: u64 = 1 << 30;

/// The viewer's server.
pub(super) struct Viewer<'a> {
    server: Listening,
    upload: &'a Upload,
}

impl<'a> Viewer<'a> {
    /// Starts the viewer before `store`, for what `upload` has put there. It has no
    /// option for an address: it listens on all.
    pub(super) fn start(folder: &Path, store: &Store, upload: &'a Upload) -> Result<Self> {
        let server = Listening::start(&folder.join("viewer.log"), |port| {
            let mut command = Command::new(shell::root().join("target/viewer/bin/dial9-viewer"));
            command
                .args(["serve", "--agg", "--local", "--port", &port.to_string()])
                .args(["--bucket", BUCKET, "--prefix", upload.prefix])
                .envs(store.environment());
            command
        })?;
        Ok(Self { server, upload })
    }

    /// The services that it finds.
    pub(super) fn services(&self) -> Result<Vec<String>> {
        let found = self.json("services", &self.range())?;
        texts(&found["services"], "")
    }

    /// The keys of our service that it finds.
    pub(super) fn keys(&self) -> Result<Vec<String>> {
        let mut query = self.range().to_vec();
        query.push(("service", self.upload.service.to_owned()));
        let found = self.json("browse", &query)?;
        texts(&found["objects"], "/key")
    }

    /// An object.
    pub(super) fn object(&self, key: &str) -> Result<Vec<u8>> {
        self.get("object", &[("key", key.to_owned())])
    }

    /// The last state of an aggregate over all `files`. Without their number it
    /// would be one of a sample.
    pub(super) fn aggregate(&self, name: &str, files: usize) -> Result<Value> {
        let [from, to] = self.upload.range_s.map(|s| format!("{s}000000000"));
        let query = [
            ("service", self.upload.service.to_owned()),
            ("start_ns", from),
            ("end_ns", to),
            ("max_files", files.to_string()),
        ];
        let stream = String::from_utf8(self.get(name, &query)?)?;
        let last = stream
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("data:"));
        let last = last.with_context(|| format!("{name} gave {stream:?}"))?;
        Ok(serde_json::from_str(last)?)
    }

    /// The address of the page that shows `segments` as one trace, with its tasks.
    pub(super) fn page(&self, segments: &[Segment]) -> String {
        let mut page = format!("{}/viewer.html?rail=tasks", self.server.url);
        for Segment { key, .. } in segments {
            let object = format!("/api/object?bucket={BUCKET}&key={}", escape(key));
            page += "&trace=";
            page += &escape(&object);
        }
        page
    }

    fn range(&self) -> [(&'static str, String); 2] {
        let [from, to] = self.upload.range_s.map(|s| s.to_string());
        [("from", from), ("to", to)]
    }

    fn json(&self, name: &str, query: &[(&str, String)]) -> Result<Value> {
        let text = self.get(name, query)?;
        serde_json::from_slice(&text).with_context(|| format!("/api/{name}"))
    }

    fn get(&self, name: &str, query: &[(&str, String)]) -> Result<Vec<u8>> {
        let mut request = self
            .server
            .agent
            .get(format!("{}/api/{name}", self.server.url));
        for (name, value) in query {
            request = request.query(name, value);
        }
        let mut response = request.call().with_context(|| format!("/api/{name}"))?;
        let body = response.body_mut().with_config().limit(MOST_BYTES);
        body.read_to_vec().with_context(|| format!("/api/{name}"))
    }
}

fn texts(values: &Value, pointer: &str) -> Result<Vec<String>> {
    let values = values.as_array().context("no list")?;
    let texts = values.iter().map(|value| value.pointer(pointer)?.as_str());
    let texts = texts.map(|text| text.map(str::to_owned));
    texts.collect::<Option<_>>().context("no texts")
}
