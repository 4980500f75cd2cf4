//! Metric families as Prometheus's text format has them (exposition format 0.0.4).
//!
//! Knows the format, and nothing of what the metrics mean.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::metrics::histogram::Reading;

/// The format's media type.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Microseconds in a second: histograms of durations are noted in microseconds.
pub(super) const MICROS: f64 = 1e6;

/// A label's name and value.
pub(super) type Label = (&'static str, String);

/// Renders what a collector writes.
pub(super) fn render(collector: impl Collector) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(collector));
    let mut text = String::new();
    encode_registry(&mut text, &registry).expect("text takes everything");
    text
}

/// Writes families, one after the other.
pub(super) struct Families<'a>(DescriptorEncoder<'a>);

impl<'a> Families<'a> {
    /// Writes into this encoder.
    pub(super) fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    /// A counter without labels. The name ends in `_total`.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.counters(name, help, [([], value)])
    }

    /// A counter by labels.
    pub(super) fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([Label; N], u64)>,
    ) -> fmt::Result {
        debug_assert!(name.ends_with("_total"), "{name}");
        // The crate's own counter is OpenMetrics' and puts `_total` behind the family's name; in
        // this format the family is named as its samples are.
        let mut family = self.family(name, help, MetricType::Counter)?;
        for (labels, value) in values {
            sample(&mut family, &labels, &value)?;
        }
        Ok(())
    }

    /// A gauge without labels; nothing where there is no value.
    pub(super) fn gauge(
        &mut self,
        name: &str,
        help: &str,
        value: impl Into<Option<f64>>,
    ) -> fmt::Result {
        self.gauges(name, help, value.into().map(|value| ([], value)))
    }

    /// A gauge by labels.
    pub(super) fn gauges<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = ([Label; N], f64)>,
    ) -> fmt::Result {
        let mut family = self.family(name, help, MetricType::Gauge)?;
        for (labels, value) in values {
            sample(&mut family, &labels, &value)?;
        }
        Ok(())
    }

    /// A histogram whose values are `scale` to the unit in the name.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        help: &str,
        reading: &Reading,
        scale: f64,
    ) -> fmt::Result {
        #[expect(clippy::cast_precision_loss, reason = "for display")]
        let scaled = |value: u64| value as f64 / scale;
        let bounds = reading.buckets.iter().map(|(bound, count)| (scaled(*bound), *count));
        let buckets: Vec<_> = bounds.chain([(f64::INFINITY, reading.above)]).collect();
        let (sum, count) = (scaled(reading.sum), reading.count());
        let mut family = self.family(name, help, MetricType::Histogram)?;
        family.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }

    fn family<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0.encode_descriptor(name, help, None, kind)
    }
}

fn sample<const N: usize>(
    family: &mut MetricEncoder<'_>,
    labels: &[Label; N],
    value: &impl EncodeGaugeValue,
) -> fmt::Result {
    if N == 0 {
        family.encode_gauge(value)
    } else {
        family.encode_family(labels)?.encode_gauge(value)
    }
}
