//! Where a topic's signing certificates come from, and whom they name.
//!
//! Everything follows from the topic's ARN, which the operator gave, and nothing from a post.

use rustls::pki_types::ServerName;

use crate::ses::sns::TopicArn;

/// The longest name of a certificate's file.
const MAX_FILE_NAME_BYTES: usize = 128;

/// A topic that is believed, and what its certificates must be like.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    pub(super) topic: TopicArn,
    /// What every certificate's URL begins with, up to the slash before the file's name.
    base: String,
    names: Vec<ServerName<'static>>,
}

/// The topic is in a partition of AWS whose certificates are not known here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0}: posts can be verified for topics in the partitions aws, aws-us-gov and aws-cn; use \
     ses.events.queue_url in its place"
)]
pub struct UnknownPartition(TopicArn);

/// The URL is none that SNS would give for this topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the certificate's URL is not one of SNS's in the topic's region")]
pub struct ForeignUrl;

impl Origin {
    pub(super) fn of(topic: TopicArn) -> Result<Self, UnknownPartition> {
        let region = topic.region();
        let suffix = match topic.as_str().split(':').nth(1) {
            Some("aws" | "aws-us-gov") => "amazonaws.com",
            Some("aws-cn") => "amazonaws.com.cn",
            _ => return Err(UnknownPartition(topic)),
        };
        // The names that AWS's own validator expects (AWS SDK for Java v2, `SnsHostProvider`): the
        // first in the older regions, the second in those that have to be opted in to, the third
        // in China and GovCloud, where the western region's stands for both. The last is what the
        // developer guide speaks of. All of them are SNS's.
        let mut names = vec![
            format!("sns.{suffix}"),
            format!("sns-signing.{region}.{suffix}"),
            format!("sns-{region}.{suffix}"),
            format!("sns.{region}.{suffix}"),
        ];
        if region.starts_with("us-gov-") {
            names.push(format!("sns-us-gov-west-1.{suffix}"));
        }
        let names = names.into_iter().map(ServerName::try_from).collect::<Result<_, _>>();
        let Ok(names) = names else { return Err(UnknownPartition(topic)) };
        let base = format!("https://sns.{region}.{suffix}/");
        Ok(Self { topic, base, names })
    }

    /// The names of which a certificate must have one.
    pub(super) fn names(&self) -> &[ServerName<'static>] {
        &self.names
    }

    /// Checks a certificate's URL: SNS's own host in the topic's region, and one plain file there.
    /// Compared byte for byte, so that no two parsers can differ over it.
    pub(super) fn check_url(&self, url: &str) -> Result<(), ForeignUrl> {
        let file = url.strip_prefix(&self.base).ok_or(ForeignUrl)?;
        let stem = file.strip_suffix(".pem").ok_or(ForeignUrl)?;
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        let is_plain = !stem.is_empty() && stem.bytes().all(allowed);
        if is_plain && file.len() <= MAX_FILE_NAME_BYTES { Ok(()) } else { Err(ForeignUrl) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(arn: &str) -> Origin {
        Origin::of(TopicArn::parse(arn).unwrap()).unwrap()
    }

    #[test]
    fn certificates_come_from_the_topics_own_region_alone() {
        let file = "SimpleNotificationService-7506a1e35b36ef5a444dd1a8e7cc3ed8.pem";
        for (arn, host) in [
            ("arn:aws:sns:eu-west-1:123456789012:t", "sns.eu-west-1.amazonaws.com"),
            ("arn:aws-us-gov:sns:us-gov-east-1:123456789012:t", "sns.us-gov-east-1.amazonaws.com"),
            ("arn:aws-cn:sns:cn-north-1:123456789012:t", "sns.cn-north-1.amazonaws.com.cn"),
        ] {
            let origin = origin(arn);
            assert_eq!(origin.check_url(&format!("https://{host}/{file}")), Ok(()), "{arn}");
            let foreign = format!("https://sns.us-east-1.amazonaws.com/{file}");
            assert_eq!(origin.check_url(&foreign), Err(ForeignUrl), "{arn}");
        }
    }

    #[test]
    fn a_url_with_anything_else_in_it_is_refused() {
        let origin = origin("arn:aws:sns:eu-west-1:123456789012:t");
        let good = "https://sns.eu-west-1.amazonaws.com/a.pem";
        assert_eq!(origin.check_url(good), Ok(()));
        for url in [
            "",
            "http://sns.eu-west-1.amazonaws.com/a.pem",
            "HTTPS://sns.eu-west-1.amazonaws.com/a.pem",
            "https://SNS.eu-west-1.amazonaws.com/a.pem",
            "https://sns.eu-west-1.amazonaws.com.evil.example/a.pem",
            "https://sns.eu-west-1.amazonaws.com.cn/a.pem",
            "https://sns.eu-west-1.amazonaws.com./a.pem",
            "https://sns.eu-west-1.amazonaws.com@evil.example/a.pem",
            "https://user@sns.eu-west-1.amazonaws.com/a.pem",
            "https://sns.eu-west-1.amazonaws.com:443/a.pem",
            "https://sns.eu-west-1.amazonaws.com\\.evil.example/a.pem",
            "https://sns.eu-west-1.amazonaws.com/",
            "https://sns.eu-west-1.amazonaws.com/.pem",
            "https://sns.eu-west-1.amazonaws.com/a.pem?b",
            "https://sns.eu-west-1.amazonaws.com/?Action=x&b=.pem",
            "https://sns.eu-west-1.amazonaws.com/a.pem#b",
            "https://sns.eu-west-1.amazonaws.com/#.pem",
            "https://sns.eu-west-1.amazonaws.com/b/a.pem",
            "https://sns.eu-west-1.amazonaws.com/../a.pem",
            "https://sns.eu-west-1.amazonaws.com//evil.example/a.pem",
            "https://sns.eu-west-1.amazonaws.com/a%2epem",
            "https://sns.eu-west-1.amazonaws.com/%61.pem",
            "https://sns.eu-west-1.amazonaws.com/a .pem",
            "https://sns.eu-west-1.amazonaws.com/a\n.pem",
            "https://sns.eu-west-1.amazonaws.com/a.pem ",
            "https://sns.eu-west-1.amazonaws.com/a.PEM",
            "https://sns.eu-west-2.amazonaws.com/a.pem",
            "https://sns.eu-west-1a.amazonaws.com/a.pem",
            "https://sns-eu-west-1.amazonaws.com/a.pem",
            "https://s3.eu-west-1.amazonaws.com/a.pem",
            "//sns.eu-west-1.amazonaws.com/a.pem",
        ] {
            assert_eq!(origin.check_url(url), Err(ForeignUrl), "{url}");
        }
        let long = format!("https://sns.eu-west-1.amazonaws.com/{}.pem", "a".repeat(128));
        assert_eq!(origin.check_url(&long), Err(ForeignUrl));
    }

    #[test]
    fn a_topic_of_another_partition_is_no_topic_to_believe() {
        let topic = TopicArn::parse("arn:aws-iso:sns:us-iso-east-1:123456789012:t").unwrap();
        assert_eq!(Origin::of(topic.clone()).unwrap_err(), UnknownPartition(topic));
    }
}
