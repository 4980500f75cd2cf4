//! Tries a check on its corpus and on mutations of it, seeded, without libFuzzer.
//!
//! `SEED` repeats a run, `FUZZ_INPUTS` says how many inputs each check gets.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

const INPUTS: u64 = if cfg!(feature = "long") { 2_000_000 } else { 10_000 };
/// The longest input, in bytes: longer ones try nothing that these do not, and take their time.
const MAX_BYTES: usize = 16 * 1024;

/// Tries `check` on each file of a corpus, then on mutations that also take in `words`.
pub(crate) fn run(corpus: &str, words: &[&str], check: fn(&[u8])) {
    let number = |variable| std::env::var(variable).ok().map(|text| text.parse::<u64>().unwrap());
    let seed = number("SEED").unwrap_or_else(|| fastrand::u64(..));
    let inputs = number("FUZZ_INPUTS").unwrap_or(INPUTS);
    let mut corpus = files(corpus);
    for input in &corpus {
        attempt(input, seed, check);
    }
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..inputs {
        let input = mutated(&corpus, words, &mut random);
        attempt(&input, seed, check);
        // Some mutations are mutated further.
        if random.u8(..) < 8 {
            let at = random.usize(..corpus.len());
            if corpus.len() < 400 { corpus.push(input) } else { corpus[at] = input }
        }
    }
    println!("SEED={seed} FUZZ_INPUTS={inputs}");
}

pub(crate) fn files(corpus: &str) -> Vec<Vec<u8>> {
    // Tests of a crate have its own folder, which lies below that of the workspace.
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut corpora = above.map(|above| above.join("tests/fuzz/corpus").join(corpus));
    let root = corpora.find(|root| root.is_dir()).expect("the workspace has the corpus");
    let mut paths: Vec<_> =
        std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    // In the same order everywhere, so that a seed means the same.
    paths.sort();
    assert!(paths.len() >= 5, "{corpus} has hardly any input");
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn attempt(input: &[u8], seed: u64, check: fn(&[u8])) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(input))) {
        eprintln!("SEED={seed}, and the input was: {}", input.escape_ascii());
        std::panic::resume_unwind(panic);
    }
}

fn mutated(corpus: &[Vec<u8>], words: &[&str], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut input = corpus[random.usize(..corpus.len())].clone();
    for _ in 0..=random.usize(..4) {
        let at = random.usize(..=input.len());
        let end = (at + random.usize(..=16)).min(input.len());
        match random.u8(..8) {
            0 if at < input.len() => input[at] ^= 1 << random.u8(..8),
            1 if at < input.len() => input[at] = random.u8(..),
            2 => drop(input.drain(at..end)),
            3 => {
                let part = input[at..end].to_vec();
                let times = 1 << random.u8(..8);
                input.splice(at..at, part.repeat(times));
            }
            4 => input.truncate(at),
            5 => {
                let other = &corpus[random.usize(..corpus.len())];
                let from = random.usize(..=other.len());
                input.splice(at.., other[from..].iter().copied());
            }
            6 => drop(input.splice(at..at, [random.u8(..)])),
            _ => {
                let word = words.get(random.usize(..words.len().max(1))).copied();
                input.splice(at..end, word.unwrap_or_default().bytes());
            }
        }
    }
    input.truncate(MAX_BYTES);
    input
}
