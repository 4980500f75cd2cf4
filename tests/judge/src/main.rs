//! Judges histories: `pillarbox-judge FILE…`.

use std::fs::File;
use std::io::BufReader;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut is_right = true;
    for path in std::env::args().skip(1) {
        let read = File::open(&path).map_err(Into::into);
        let history = read.and_then(|file| pillarbox_judge::read(BufReader::new(file)));
        let history = match history {
            Ok(history) => history,
            Err(error) => {
                eprintln!("{path}: {error}");
                return ExitCode::from(2);
            }
        };
        match pillarbox_judge::judge(&history) {
            Ok(summary) => println!("{path}: {summary:?}"),
            Err(contradiction) => {
                println!("{path}: {contradiction}");
                is_right = false;
            }
        }
    }
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
