//! A server of S3 in this process.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tempfile::TempDir;
use tokio::net::TcpListener;

pub(crate) const BUCKET: &str = "dial9-test";
pub(crate) const KEY_ID: &str = "AKIATEST";
pub(crate) const SECRET: &str = "secret of the test";

/// A running server; it ends with the runtime.
pub(crate) struct Server {
    root: TempDir,
    pub(crate) address: SocketAddr,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join(BUCKET)).unwrap();
        let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(root.path()).unwrap());
        builder.set_auth(SimpleAuth::from_single(KEY_ID, SECRET));
        let service = builder.build();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let http = Builder::new(TokioExecutor::new());
                    // A client that goes away is a part of the tests.
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { root, address }
    }

    /// Content of every object of the bucket, by key.
    pub(crate) fn objects(&self) -> BTreeMap<String, Vec<u8>> {
        let read = |(key, path)| (key, std::fs::read(path).unwrap());
        self.files().into_iter().map(read).collect()
    }

    /// The file of every object of the bucket, by key.
    pub(crate) fn files(&self) -> BTreeMap<String, PathBuf> {
        let mut files = BTreeMap::new();
        let bucket = self.root.path().join(BUCKET);
        collect(&bucket, &bucket, &mut files);
        files
    }

    /// What is kept of the objects beside their bytes, as JSON.
    pub(crate) fn attributes(&self) -> Vec<String> {
        let mut attributes = Vec::new();
        for entry in std::fs::read_dir(self.root.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.to_string_lossy().ends_with(".metadata.json") {
                attributes.push(std::fs::read_to_string(path).unwrap());
            }
        }
        attributes
    }
}

fn collect(bucket: &Path, dir: &Path, files: &mut BTreeMap<String, PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(bucket, &path, files);
        } else {
            let key = path.strip_prefix(bucket).unwrap().to_str().unwrap();
            files.insert(key.to_owned(), path);
        }
    }
}
