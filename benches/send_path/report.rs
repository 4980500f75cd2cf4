//! Results: medians, the goals that they are compared with, a table and a JSON document.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value};

/// On which side of its bound a figure must be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// A goal and what was seen of it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Goal {
    what: String,
    bound: Bound,
    unit: &'static str,
    seen: f64,
    met: bool,
}

/// Everything that a run measured.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    machine: Map<String, Value>,
    figures: Map<String, Value>,
    goals: Vec<Goal>,
}

impl Report {
    pub(crate) fn new(is_short: bool) -> Self {
        let mut machine = Map::new();
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        machine.insert("cores".to_owned(), cores.into());
        machine.insert("processor".to_owned(), processor().into());
        machine.insert("load_before".to_owned(), load_average().into());
        machine.insert("short".to_owned(), is_short.into());
        Self { machine, ..Self::default() }
    }

    /// Keeps a figure; a later one of the same name takes its place.
    pub(crate) fn figure(&mut self, name: &str, value: impl Into<Value>) {
        let value = value.into();
        println!("  {name}: {value}");
        self.figures.insert(name.to_owned(), value);
    }

    /// Holds a figure against its goal.
    pub(crate) fn goal(&mut self, what: &str, bound: Bound, unit: &'static str, seen: f64) {
        let met = match bound {
            Bound::AtLeast(least) => seen >= least,
            Bound::AtMost(most) => seen <= most,
        };
        self.goals.push(Goal { what: what.to_owned(), bound, unit, seen, met });
    }

    /// A figure that was kept.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.figures.get(name)
    }

    /// True if every goal is met.
    pub(crate) fn is_met(&self) -> bool {
        self.goals.iter().all(|goal| goal.met)
    }

    /// The goals as a table, in Markdown.
    pub(crate) fn table(&self) -> String {
        let mut text = String::from("| what | goal | seen | |\n|---|---|---|---|\n");
        for Goal { what, bound, unit, seen, met } in &self.goals {
            let (sign, limit) = match bound {
                Bound::AtLeast(least) => ('≥', least),
                Bound::AtMost(most) => ('≤', most),
            };
            let met = if *met { "met" } else { "missed" };
            let (limit, seen) = (rounded(*limit), rounded(*seen));
            writeln!(text, "| {what} | {sign} {limit}{unit} | {seen}{unit} | {met} |")
                .expect("a string takes everything");
        }
        text
    }

    /// Writes `report.json` and `report.md`.
    pub(crate) fn write(&self, directory: &Path) -> anyhow::Result<PathBuf> {
        let path = directory.join("report.json");
        fs::write(&path, serde_json::to_vec_pretty(self)?)?;
        fs::write(directory.join("report.md"), self.table())?;
        Ok(path)
    }
}

/// The middle of the values; of an even number, the mean of the two in the middle.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    assert!(!values.is_empty(), "a median is of something");
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    }
}

/// The median of the ratios of two figures that were seen in the same rounds.
pub(crate) fn median_ratio(these: &[f64], those: &[f64]) -> f64 {
    median(these.iter().zip(those).map(|(this, that)| this / that).collect())
}

fn rounded(value: f64) -> String {
    if value.abs() < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    line.map_or_else(String::new, |rest| rest.trim_start_matches([' ', '\t', ':']).to_owned())
}

/// The machine's load average over a minute (`proc_loadavg(5)`).
pub(crate) fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}
