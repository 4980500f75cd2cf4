//! Endpoints of AWS's services: their own, or one that stands in for all.
//!
//! Knows hosts' names, and nothing of what is called there.

use reqwest::Url;

use crate::{SesError, SesOptions};

/// The domains of AWS's own endpoints ("AWS service endpoints"): commercial, China, dual-stack.
pub(super) const AWS_SUFFIXES: [&str; 3] = [".amazonaws.com", ".amazonaws.com.cn", ".api.aws"];

/// Endpoints of all services.
#[derive(Debug)]
pub(super) struct Endpoints {
    ses: String,
    stand_in: Option<String>,
}

impl Endpoints {
    /// By the region and the endpoint that was given for SES, if one was.
    ///
    /// An endpoint that is not AWS's own stands in for SNS, SQS and STS too: a simulator has all
    /// of them at one address, and must never be mixed with the real ones. One that is AWS's own,
    /// such as that of a private network's SES, is for SES alone.
    pub(super) fn new(options: &SesOptions) -> Result<Self, SesError> {
        let region = &options.region;
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if region.is_empty() || !region.bytes().all(allowed) {
            return Err(SesError::Region(region.clone()));
        }
        let Some(endpoint) = &options.endpoint else {
            return Ok(Self { ses: regional("email", region), stand_in: None });
        };
        let Some(host) = usable_host(endpoint) else {
            // What stands before an `@` may be a password: it is not repeated.
            let shown = endpoint.rsplit('@').next().unwrap_or_default();
            return Err(SesError::Endpoint(shown.to_owned()));
        };
        let ses = endpoint.trim_end_matches('/').to_owned();
        let is_aws = AWS_SUFFIXES.iter().any(|suffix| host.ends_with(suffix));
        let stand_in = (!is_aws).then(|| ses.clone());
        Ok(Self { ses, stand_in })
    }

    /// The base of SES's URLs, without a slash at its end.
    pub(super) fn ses(&self) -> &str {
        &self.ses
    }

    /// The base of the URLs of another service in a region, without a slash at its end.
    pub(super) fn of(&self, service: &str, region: &str) -> String {
        self.stand_in.clone().unwrap_or_else(|| regional(service, region))
    }
}

/// AWS's own endpoint of a service.
fn regional(service: &str, region: &str) -> String {
    // The AWS partition in China has its own top-level domain.
    let suffix = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    format!("https://{service}.{region}.{suffix}")
}

/// The host of an endpoint that requests can be sent to.
fn usable_host(endpoint: &str) -> Option<String> {
    let url = Url::parse(endpoint).ok()?;
    let usable = matches!(url.scheme(), "http" | "https")
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    url.host_str().filter(|_| usable).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stub;

    fn endpoints(region: &str, endpoint: Option<&str>) -> Result<Endpoints, SesError> {
        let endpoint = endpoint.map(str::to_owned);
        let region = region.to_owned();
        Endpoints::new(&SesOptions { region, endpoint, ..stub::options("http://unused") })
    }

    #[test]
    fn the_endpoint_is_the_regions_own_unless_one_is_given() {
        let base = |region, endpoint| endpoints(region, endpoint).unwrap().ses().to_owned();
        assert_eq!(base("eu-west-1", None), "https://email.eu-west-1.amazonaws.com");
        assert_eq!(base("cn-north-1", None), "https://email.cn-north-1.amazonaws.com.cn");
        assert_eq!(base("eu-west-1", Some("http://[::1]:9100/")), "http://[::1]:9100");
        assert_eq!(base("eu-west-1", Some("https://x.org/ses/")), "https://x.org/ses");
    }

    #[test]
    fn an_endpoint_outside_of_aws_stands_in_for_all_services() {
        let of = |endpoint| endpoints("eu-west-1", endpoint).unwrap().of("sns", "us-east-1");
        assert_eq!(of(None), "https://sns.us-east-1.amazonaws.com");
        assert_eq!(of(Some("http://127.0.0.1:5000/")), "http://127.0.0.1:5000");
        let private = "https://vpce-1-2.email.eu-west-1.vpce.amazonaws.com";
        assert_eq!(of(Some(private)), "https://sns.us-east-1.amazonaws.com");
        assert_eq!(of(Some("https://amazonaws.com.x.org")), "https://amazonaws.com.x.org");
    }

    #[test]
    fn what_cannot_be_an_endpoint_is_refused_without_repeating_a_password() {
        for endpoint in ["", "x.org", "ftp://x.org", "http://x.org?a", "http://x.org#a"] {
            assert!(endpoints("eu-west-1", Some(endpoint)).is_err(), "{endpoint}");
        }
        let error = endpoints("eu-west-1", Some("http://u:secret@x.org")).unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
        assert!(matches!(endpoints("x.org/", None), Err(SesError::Region(_))));
        assert!(matches!(endpoints("", None), Err(SesError::Region(_))));
    }
}
