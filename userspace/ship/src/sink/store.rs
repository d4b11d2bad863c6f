//! Object stores and directories.
//!
//! In: a destination, options, the environment. Out: a [`Sink`] by the crate
//! `object_store`. Never: a retry of that crate's own; plain HTTP to another
//! machine unless the environment asks for it; a profile file.
//!
//! Credentials of S3, by the environment: access keys; a web identity token; the
//! endpoints of ECS and EKS Pod Identity; else the instance's, by version 2 of
//! its metadata service.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AwsCredentialProvider};
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{
    Attribute, Attributes, Certificate, ClientOptions, HeaderValue, ObjectStore, PutOptions,
    PutPayload, RetryConfig,
};

use super::answer::{Answer, NotingConnector, listen};
use super::{Destination, Object, PutError, Sink};

const USER_AGENT: &str = concat!("dial9-bpf/", env!("CARGO_PKG_VERSION"));
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How to reach a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// URL of a store that speaks S3; the environment's unless given.
    pub endpoint: Option<String>,
    /// Region of S3; the environment's unless given.
    pub region: Option<String>,
    /// Certificates, PEM, to trust beside the system's.
    pub ca_file: Option<PathBuf>,
    /// How long an attempt may take whatever its size.
    pub attempt_timeout: Duration,
    /// Speed below which an attempt is given up, bytes a second.
    pub min_bytes_per_s: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            ca_file: None,
            attempt_timeout: Duration::from_secs(30),
            min_bytes_per_s: 64 * 1024,
        }
    }
}

/// A store that cannot be used at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Plain HTTP to another machine, which the environment did not ask for.
    #[error("{endpoint} is neither HTTPS nor on this machine")]
    Insecure {
        /// The endpoint.
        endpoint: String,
    },
    /// The certificates cannot be read.
    #[error("cannot read the certificates of {}", path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The directory cannot be made.
    #[error("cannot create {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The options or the environment do not go together.
    #[error("cannot set up {destination}")]
    Settings {
        /// Where to.
        destination: Destination,
        /// The cause.
        source: Box<object_store::Error>,
    },
}

/// A destination that takes objects.
#[derive(Debug)]
pub struct StoreSink {
    store: Arc<dyn ObjectStore>,
    credentials: Option<AwsCredentialProvider>,
    naming: Naming,
    attempt_timeout: Duration,
    min_bytes_per_s: u64,
}

/// What a store takes beside the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Naming {
    /// Media type and metadata.
    Headers,
    /// The same, but names are identifiers.
    #[cfg(feature = "azure")]
    Identifiers,
    /// Nothing.
    BytesOnly,
}

impl StoreSink {
    /// Gets ready to put. Nobody is called yet. `env` is the environment.
    ///
    /// # Errors
    ///
    /// [`OpenError`] with what does not go together, or the file or directory at
    /// fault.
    pub fn open(
        destination: &Destination,
        options: &StoreOptions,
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, OpenError> {
        // An installed one stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let env: Vec<(String, String)> = env.into_iter().collect();
        let settings = |source| OpenError::Settings {
            destination: destination.clone(),
            source: Box::new(source),
        };
        let mut credentials = None;
        let (store, naming): (Arc<dyn ObjectStore>, Naming) = match destination {
            Destination::S3 { bucket, .. } => {
                let s3 = s3(bucket, options, &env)?.build().map_err(settings)?;
                credentials = Some(Arc::clone(s3.credentials()));
                (Arc::new(s3), Naming::Headers)
            }
            Destination::File { dir } => {
                let create_error = |source| OpenError::Directory {
                    path: dir.clone(),
                    source,
                };
                std::fs::create_dir_all(dir).map_err(create_error)?;
                let files = LocalFileSystem::new_with_prefix(dir).map_err(settings)?;
                (Arc::new(files.with_fsync(true)), Naming::BytesOnly)
            }
            #[cfg(feature = "gcp")]
            Destination::Gcs { bucket, .. } => {
                let gcs = gcs(bucket, options, &env)?.build().map_err(settings)?;
                (Arc::new(gcs), Naming::Headers)
            }
            #[cfg(feature = "azure")]
            Destination::Azure { container, .. } => {
                let azure = azure(container, options, &env)?.build().map_err(settings)?;
                (Arc::new(azure), Naming::Identifiers)
            }
            #[cfg(not(all(feature = "gcp", feature = "azure")))]
            _ => {
                return Err(settings(object_store::Error::NotImplemented {
                    operation: "open".to_owned(),
                    implementer: "this build".to_owned(),
                }));
            }
        };
        Ok(Self {
            store,
            credentials,
            naming,
            attempt_timeout: options.attempt_timeout,
            min_bytes_per_s: options.min_bytes_per_s.max(1),
        })
    }

    fn attributes(&self, object: &Object) -> Attributes {
        let mut attributes = Attributes::new();
        if self.naming == Naming::BytesOnly {
            return attributes;
        }
        attributes.insert(Attribute::ContentType, object.content_type.into());
        for (name, value) in &object.metadata {
            let name = match self.naming {
                #[cfg(feature = "azure")]
                Naming::Identifiers => name.replace('-', "_"),
                _ => (*name).to_owned(),
            };
            attributes.insert(Attribute::Metadata(name.into()), value.clone().into());
        }
        attributes
    }
}

impl Sink for StoreSink {
    async fn put(&self, object: Object) -> Result<(), PutError> {
        let key =
            Key::parse(&object.key).map_err(|error| classify(error.into(), Answer::NotAsked))?;
        let options = PutOptions {
            attributes: self.attributes(&object),
            ..PutOptions::default()
        };
        let by_size = Duration::from_secs(object.bytes.len() as u64 / self.min_bytes_per_s);
        let limit = self.attempt_timeout + by_size;
        let payload = PutPayload::from_bytes(object.bytes);
        let put = tokio::time::timeout(limit, self.store.put_opts(&key, payload, options));
        match listen(put).await {
            (Ok(Ok(_)), _) => Ok(()),
            (Ok(Err(error)), answer) => Err(classify(error, answer)),
            (Err(_), _) => Err(PutError {
                retryable: true,
                status: None,
                code: None,
                source: format!("no answer within {limit:?}").into(),
            }),
        }
    }

    async fn credentials(&self) -> Option<u64> {
        let asked = self.credentials.as_ref()?.get_credential();
        let credential = tokio::time::timeout(self.attempt_timeout, asked).await;
        let credential = credential.ok()?.ok()?;
        let mut hasher = DefaultHasher::new();
        (&credential.key_id, &credential.token).hash(&mut hasher);
        Some(hasher.finish())
    }
}

/// What a failure says of the next attempt.
fn classify(error: object_store::Error, answer: Answer) -> PutError {
    use object_store::Error;
    let code = code_in(&error.to_string());
    let (retryable, status) = match answer {
        // A directory, or credentials that are a file.
        Answer::NotAsked => {
            let is_final = matches!(
                error,
                Error::PermissionDenied { .. }
                    | Error::InvalidPath { .. }
                    | Error::NotSupported { .. }
                    | Error::NotImplemented { .. }
            );
            (!is_final, None)
        }
        Answer::NoReply => (true, None),
        Answer::Status(status) => {
            let is_slow = code.as_deref() == Some("RequestTimeout");
            let is_passing = matches!(status, 408 | 429 | 500..) || (200..300).contains(&status);
            (is_passing || is_slow, Some(status))
        }
    };
    PutError {
        retryable,
        status,
        code,
        source: Box::new(error),
    }
}

/// The code of an error of S3, which is given as a part of its text.
fn code_in(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_code = !code.is_empty() && code.chars().all(|char| char.is_ascii_alphanumeric());
    is_code.then(|| code.to_owned())
}

fn s3(
    bucket: &str,
    options: &StoreOptions,
    env: &[(String, String)],
) -> Result<AmazonS3Builder, OpenError> {
    let mut builder = AmazonS3Builder::new()
        .with_client_options(client_options(options)?)
        .with_http_connector(NotingConnector)
        .with_retry(no_retry());
    let mut has_plain_endpoint = false;
    for (name, value) in env.iter().filter(|(name, _)| name.starts_with("AWS_")) {
        has_plain_endpoint |= name.contains("ENDPOINT_URL") && value.starts_with("http://");
        if let Ok(key) = name.to_ascii_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    if has_plain_endpoint {
        builder = builder.with_allow_http(true);
    }
    if let Some(endpoint) = &options.endpoint {
        if endpoint.starts_with("http://") {
            if !is_loopback(endpoint) {
                return Err(OpenError::Insecure {
                    endpoint: endpoint.clone(),
                });
            }
            builder = builder.with_allow_http(true);
        }
        // The environment's own of S3 would be preferred to `with_endpoint`.
        builder = builder.with_config(object_store::aws::AmazonS3ConfigKey::S3Endpoint, endpoint);
    }
    if let Some(region) = &options.region {
        builder = builder.with_region(region);
    }
    Ok(builder.with_bucket_name(bucket))
}

#[cfg(feature = "gcp")]
fn gcs(
    bucket: &str,
    options: &StoreOptions,
    env: &[(String, String)],
) -> Result<object_store::gcp::GoogleCloudStorageBuilder, OpenError> {
    let mut builder = object_store::gcp::GoogleCloudStorageBuilder::new()
        .with_client_options(client_options(options)?)
        .with_http_connector(NotingConnector)
        .with_retry(no_retry());
    for (name, value) in env.iter().filter(|(name, _)| name.starts_with("GOOGLE_")) {
        if let Ok(key) = name.to_ascii_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    Ok(builder.with_bucket_name(bucket))
}

#[cfg(feature = "azure")]
fn azure(
    container: &str,
    options: &StoreOptions,
    env: &[(String, String)],
) -> Result<object_store::azure::MicrosoftAzureBuilder, OpenError> {
    let mut builder = object_store::azure::MicrosoftAzureBuilder::new()
        .with_client_options(client_options(options)?)
        .with_http_connector(NotingConnector)
        .with_retry(no_retry());
    for (name, value) in env.iter().filter(|(name, _)| name.starts_with("AZURE_")) {
        if let Ok(key) = name.to_ascii_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    Ok(builder.with_container_name(container))
}

/// The time of an attempt is limited by its size, not by the client.
fn client_options(options: &StoreOptions) -> Result<ClientOptions, OpenError> {
    let mut client = ClientOptions::new()
        .with_user_agent(HeaderValue::from_static(USER_AGENT))
        .with_connect_timeout(CONNECT_TIMEOUT.min(options.attempt_timeout))
        .with_timeout_disabled();
    if let Some(path) = &options.ca_file {
        for certificate in certificates(path)? {
            client = client.with_root_certificate(certificate);
        }
    }
    Ok(client)
}

fn certificates(path: &Path) -> Result<Vec<Certificate>, OpenError> {
    let failed = |source| OpenError::Certificates {
        path: path.to_owned(),
        source,
    };
    let pem = std::fs::read(path).map_err(|error| failed(error.into()))?;
    let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| failed(error.into()))?;
    if certificates.is_empty() {
        return Err(failed("there is none in it".into()));
    }
    Ok(certificates)
}

fn no_retry() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    }
}

/// Whether a URL names this machine by its loopback addresses.
fn is_loopback(url: &str) -> bool {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests;
