//! Runs a case a given number of times, for a program that counts instructions (`bench/instructions`).
//!
//! `instructions` lists the cases, `instructions CASE TIMES` runs one.

mod cases;

use std::env;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => cases::all().iter().for_each(|case| println!("{}", case.name)),
        [name, times] => {
            let Some(case) = cases::all().into_iter().find(|case| case.name == name) else {
                eprintln!("there is no case {name}");
                return ExitCode::FAILURE;
            };
            let Ok(times) = times.parse::<usize>() else {
                eprintln!("{times} is not a number");
                return ExitCode::FAILURE;
            };
            let mut work = case.prepare();
            (0..times).for_each(|_| work());
        }
        _ => {
            eprintln!("usage: instructions [CASE TIMES]");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
