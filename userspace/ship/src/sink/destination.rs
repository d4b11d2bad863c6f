//! What `--upload` takes.
//!
//! In: `s3://bucket/prefix` and its like. Out: where that is. Never: a guess
//! about what was meant.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use object_store::path::Path;

/// Where segments go.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Destination {
    /// S3, or a store that speaks its protocol.
    S3 {
        /// The bucket.
        bucket: String,
        /// What keys begin with; no slash at its ends.
        prefix: String,
    },
    /// A directory of this machine.
    File {
        /// The directory.
        dir: PathBuf,
    },
    /// Google Cloud Storage.
    Gcs {
        /// The bucket.
        bucket: String,
        /// What keys begin with; no slash at its ends.
        prefix: String,
    },
    /// Azure Blob Storage.
    Azure {
        /// The container; the account is told by the environment.
        container: String,
        /// What keys begin with; no slash at its ends.
        prefix: String,
    },
}

/// A text that is no destination.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DestinationError {
    /// Nothing we know begins like that.
    #[error(
        "{text:?} is none of s3://BUCKET/PREFIX, file:///DIR, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX"
    )]
    Scheme {
        /// The text.
        text: String,
    },
    /// No bucket or container after the scheme.
    #[error("{text:?} names no bucket")]
    Bucket {
        /// The text.
        text: String,
    },
    /// The path is not absolute.
    #[error("{text:?} is no absolute path, as in file:///DIR")]
    Directory {
        /// The text.
        text: String,
    },
    /// The prefix has an empty part, a part `.` or `..`, or a control character.
    #[error("keys cannot begin with {prefix:?}")]
    Prefix {
        /// The prefix.
        prefix: String,
    },
    /// Left out when this was compiled.
    #[error("{text:?} needs a build with the feature {feature:?}")]
    Feature {
        /// The text.
        text: String,
        /// The feature of this package.
        feature: &'static str,
    },
}

impl Destination {
    /// What keys begin with.
    pub fn prefix(&self) -> &str {
        match self {
            Self::S3 { prefix, .. } | Self::Gcs { prefix, .. } | Self::Azure { prefix, .. } => {
                prefix
            }
            Self::File { .. } => "",
        }
    }
}

impl FromStr for Destination {
    type Err = DestinationError;

    fn from_str(text: &str) -> Result<Self, DestinationError> {
        let scheme_error = || DestinationError::Scheme {
            text: text.to_owned(),
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(scheme_error)?;
        match scheme {
            "s3" => {
                let (bucket, prefix) = place(text, rest)?;
                Ok(Self::S3 { bucket, prefix })
            }
            "gs" => {
                require(cfg!(feature = "gcp"), text, "gcp")?;
                let (bucket, prefix) = place(text, rest)?;
                Ok(Self::Gcs { bucket, prefix })
            }
            "az" => {
                require(cfg!(feature = "azure"), text, "azure")?;
                let (container, prefix) = place(text, rest)?;
                Ok(Self::Azure { container, prefix })
            }
            "file" if rest.starts_with('/') => Ok(Self::File { dir: rest.into() }),
            "file" => Err(DestinationError::Directory {
                text: text.to_owned(),
            }),
            _ => Err(scheme_error()),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
            Self::File { dir } => write!(f, "file://{}", dir.display()),
            Self::Gcs { bucket, prefix } => write!(f, "gs://{bucket}/{prefix}"),
            Self::Azure { container, prefix } => write!(f, "az://{container}/{prefix}"),
        }
    }
}

fn require(is_built: bool, text: &str, feature: &'static str) -> Result<(), DestinationError> {
    if is_built {
        return Ok(());
    }
    Err(DestinationError::Feature {
        text: text.to_owned(),
        feature,
    })
}

/// Bucket and prefix.
fn place(text: &str, rest: &str) -> Result<(String, String), DestinationError> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let is_name = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
    if bucket.is_empty() || !bucket.chars().all(is_name) {
        return Err(DestinationError::Bucket {
            text: text.to_owned(),
        });
    }
    let prefix = prefix.trim_matches('/');
    let has_control = prefix.chars().any(char::is_control);
    if has_control || Path::parse(prefix).is_err() {
        return Err(DestinationError::Prefix {
            prefix: prefix.to_owned(),
        });
    }
    Ok((bucket.to_owned(), prefix.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s3(bucket: &str, prefix: &str) -> Destination {
        Destination::S3 {
            bucket: bucket.into(),
            prefix: prefix.into(),
        }
    }

    #[test]
    fn buckets_and_directories_are_taken() {
        for (text, destination) in [
            ("s3://b", s3("b", "")),
            ("s3://b/", s3("b", "")),
            ("s3://my.bucket-1/a/b=c/", s3("my.bucket-1", "a/b=c")),
            (
                "file:///var/traces",
                Destination::File {
                    dir: "/var/traces".into(),
                },
            ),
        ] {
            assert_eq!(text.parse(), Ok(destination), "{text}");
        }
        assert_eq!(s3("b", "p/q").to_string(), "s3://b/p/q");
        assert_eq!(s3("b", "p/q").prefix(), "p/q");
    }

    #[test]
    fn everything_else_says_why_not() {
        for (text, message) in [
            ("b/p", "\"b/p\" is none of s3://"),
            ("ftp://b", "\"ftp://b\" is none of s3://"),
            ("s3://", "\"s3://\" names no bucket"),
            ("s3:///p", "\"s3:///p\" names no bucket"),
            ("s3://key:secret@b/p", "names no bucket"),
            ("s3://b/p//q", "keys cannot begin with \"p//q\""),
            ("s3://b/../q", "keys cannot begin with \"../q\""),
            ("s3://b/a\nb", "keys cannot begin with"),
            ("file://dir", "\"file://dir\" is no absolute path"),
        ] {
            let error = text.parse::<Destination>().unwrap_err().to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_left_out_names_its_feature() {
        for (text, feature, is_built) in [
            ("gs://b/p", "gcp", cfg!(feature = "gcp")),
            ("az://b/p", "azure", cfg!(feature = "azure")),
        ] {
            match text.parse::<Destination>() {
                Ok(destination) => {
                    assert!(is_built);
                    assert_eq!(destination.to_string(), text);
                }
                Err(error) => {
                    assert!(!is_built);
                    assert_eq!(
                        error,
                        DestinationError::Feature {
                            text: text.into(),
                            feature
                        }
                    );
                }
            }
        }
    }
}
