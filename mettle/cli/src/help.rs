//! The end of each command's help: examples and exit codes.

use daemon::exit::EXIT_CODES;

/// Returns the end of the help for a command that signs.
pub(crate) fn signing(examples: &[&str]) -> String {
    format!("{}\n\n{EXIT_CODES}", reading(examples))
}

/// Returns the end of the help for a command that does not sign.
pub(crate) fn reading(examples: &[&str]) -> String {
    let lines: Vec<String> = examples.iter().map(|line| format!("  {line}")).collect();
    format!("Examples:\n{}", lines.join("\n"))
}
