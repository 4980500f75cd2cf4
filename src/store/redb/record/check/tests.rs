use std::collections::BTreeSet;

use super::*;

#[path = "../../../../../tests/fuzz/mutate.rs"]
mod mutate;

#[test]
fn the_corpus_has_rows_of_every_kind() {
    let corpus = mutate::files("record");
    let rows = corpus.iter().filter(|input| check_row(input));
    let kinds: BTreeSet<_> = rows.map(|input| input[0]).collect();
    assert_eq!(kinds, (0..KINDS).collect());
}

#[test]
fn rows_of_any_bytes_are_read_or_refused() {
    mutate::run("record", &["\u{0}\u{0}", "\u{1}", "\u{7f}\u{7f}\u{7f}\u{1}"], |input| {
        check_row(input);
    });
}
