//! The report's curves as SVG: latency against load, and throughput against the table's size.

use std::path::Path;

use anyhow::Context as _;
use plotters::prelude::{
    ChartBuilder, IntoDrawingArea as _, LineSeries, SVGBackend, SeriesLabelPosition,
};
use plotters::style::{BLACK, BLUE, RED, RGBColor, WHITE};
use serde_json::Value;

use crate::report::Report;

const SIZE: (u32, u32) = (800, 500);

struct Curve {
    name: &'static str,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

/// Draws what the report has.
pub(crate) fn draw(report: &Report, directory: &Path) -> anyhow::Result<()> {
    if let Some(Value::Array(levels)) = report.get("accept") {
        let points = |server: &str, name: &str| {
            levels
                .iter()
                .filter_map(|level| {
                    let server = level.get(server)?;
                    Some((
                        server.get("per_second")?.as_f64()?,
                        server.get(name)?.as_f64()? / 1_000.0,
                    ))
                })
                .collect::<Vec<_>>()
        };
        let curves = [
            Curve { name: "p99, pillarbox", colour: RED, points: points("service", "p99_us") },
            Curve { name: "p50, pillarbox", colour: BLUE, points: points("service", "p50_us") },
            Curve { name: "p99, bare hyper", colour: BLACK, points: points("bare", "p99_us") },
        ];
        let path = directory.join("latency.svg");
        chart(&path, "Time to the answer", "requests/s", "ms", &curves)?;
    }
    if let Some(flatness) = report.get("flatness") {
        let numbers = |name: &str| -> Vec<f64> {
            let values = flatness.get(name).and_then(Value::as_array);
            values.into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        let points = numbers("records").into_iter().map(|n| n / 1e6).zip(numbers("per_second"));
        let curves = [Curve { name: "64 connections", colour: BLUE, points: points.collect() }];
        let path = directory.join("size.svg");
        chart(&path, "Accepts and the table's size", "million records", "accepts/s", &curves)?;
    }
    Ok(())
}

fn chart(path: &Path, title: &str, x: &str, y: &str, curves: &[Curve]) -> anyhow::Result<()> {
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let max = |pick: fn(&(f64, f64)) -> f64| all().map(pick).fold(0.0, f64::max) * 1.05;
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 22))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..max(|point| point.0), 0.0..max(|point| point.1))?;
    chart.configure_mesh().x_desc(x).y_desc(y).draw()?;
    for Curve { name, colour, points } in curves {
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour).point_size(4))?
            .label(*name)
            .legend(|(x, y)| plotters::element::PathElement::new([(x, y), (x + 18, y)], *colour));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    area.present().with_context(|| format!("cannot write {}", path.display()))
}
