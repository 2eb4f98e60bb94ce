//! What a command prints, asks and exits with: one JSON object with `--json`, else text.

use anyhow::bail;
use chain_client::ChainError;
use serde_json::{Map, Value, json};
use std::{
    fmt,
    io::{self, BufRead as _, IsTerminal as _, Write},
};

/// Why nothing was signed. Nothing was changed anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSigned {
    #[error("nothing was signed")]
    Declined,
    #[error("nothing was signed: there is nobody to ask. Add --yes to sign without asking")]
    NobodyToAsk,
    #[error(
        "nothing was signed: --json does not ask. Add --yes to sign, or --dry-run to only see the preview"
    )]
    JsonNeedsYes,
}

/// Where a verb writes to, and whom it asks. One for each command.
pub struct Output<'a> {
    json: bool,
    out: &'a mut dyn Write,
    /// Previews and questions: not what a script reads.
    aside: &'a mut dyn Write,
    /// A line that somebody typed; `None` if there is nobody.
    ask: &'a mut dyn FnMut() -> io::Result<Option<String>>,
    preview: Value,
    result: Value,
}

impl<'a> Output<'a> {
    pub fn new(
        json: bool,
        out: &'a mut dyn Write,
        aside: &'a mut dyn Write,
        ask: &'a mut dyn FnMut() -> io::Result<Option<String>>,
    ) -> Output<'a> {
        Output { json, out, aside, ask, preview: Value::Null, result: Value::Null }
    }

    /// Whether one JSON object is printed at the end, and nothing before.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// What the verb came to: `text` for a person, at once; `value` for a program, at the end.
    pub fn result(&mut self, text: &str, value: Value) -> io::Result<()> {
        if !self.json {
            writeln!(self.out, "{}", text.trim_end())?;
        }
        match (&mut self.result, value) {
            (Value::Object(known), Value::Object(more)) => known.extend(more),
            (result, value) => *result = value,
        }
        Ok(())
    }

    /// A word to whoever is looking, not a result.
    pub fn aside(&mut self, text: &str) -> io::Result<()> {
        if self.json { Ok(()) } else { writeln!(self.aside, "{text}") }
    }

    /// Prints the JSON object, if one is wanted, with the error in it if there was one.
    pub fn finish(self, done: &anyhow::Result<()>) -> io::Result<()> {
        if !self.json {
            return Ok(());
        }
        let mut object = Map::new();
        object.insert("preview".into(), self.preview);
        object.insert("result".into(), self.result);
        if let Err(error) = done {
            object.insert("error".into(), error_as_json(error));
        }
        writeln!(self.out, "{}", Value::Object(object))
    }

    /// Shows what is about to be signed: `text` to the person, `value` in the JSON object. `is_result` if showing it is all that was asked for.
    pub fn preview(&mut self, text: &dyn fmt::Display, value: Value, is_result: bool) -> io::Result<()> {
        self.preview = value;
        if self.json {
            return Ok(());
        }
        let to: &mut dyn Write = if is_result { self.out } else { self.aside };
        write!(to, "{text}")
    }

    /// Asks for consent to what was shown, unless `yes` gives it beforehand.
    ///
    /// # Errors
    /// [`NotSigned`] if it was refused or nobody can be asked; the terminal's own errors.
    pub fn confirm(&mut self, yes: bool) -> anyhow::Result<()> {
        if yes {
            return Ok(());
        }
        if self.json {
            bail!(NotSigned::JsonNeedsYes);
        }
        write!(self.aside, "Sign? [y/N] ")?;
        self.aside.flush()?;
        match (self.ask)()?.as_deref().map(str::trim) {
            Some("y" | "Y" | "yes") => Ok(()),
            Some(_) => bail!(NotSigned::Declined),
            None => {
                writeln!(self.aside)?;
                bail!(NotSigned::NobodyToAsk)
            }
        }
    }
}

/// Reads an answer from the terminal; none if standard input is none.
pub fn ask_terminal() -> io::Result<Option<String>> {
    if !io::stdin().is_terminal() {
        return Ok(None);
    }
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(Some(answer))
}

fn error_as_json(error: &anyhow::Error) -> Value {
    let mut object = json!({ "message": format!("{error:#}"), "exit_code": exit_code(error) });
    if let (Some(ChainError::Refused { pallet, error, docs, .. }), Value::Object(object)) =
        (chain_error(error), &mut object)
    {
        object.insert("refused".into(), json!({ "pallet": pallet, "error": error, "docs": docs }));
    }
    object
}

fn chain_error(error: &anyhow::Error) -> Option<&ChainError> {
    error.chain().find_map(|cause| cause.downcast_ref::<ChainError>())
}

/// Something else went wrong: a setting, a file, a key, a wish that cannot be.
pub const EXIT_FAILED: u8 = 1;
/// Nothing was signed, as nobody agreed.
pub const EXIT_NOT_SIGNED: u8 = 4;
/// The chain refused a call: nothing changed but the fee.
pub const EXIT_REFUSED: u8 = 5;
/// The chain could not be reached, or took nothing: it may be tried again.
pub const EXIT_UNREACHABLE: u8 = 6;
/// A call was sent, and nobody can tell yet what became of it.
pub const EXIT_UNCERTAIN: u8 = 7;

/// What the exit codes mean, as the end of a command's help.
pub const EXIT_CODES: &str = "\
Exit codes: 0 done, or nothing to do; 1 failed; 2 wrong flags; 4 nothing was signed, as nobody agreed; 5 the chain refused, \
and nothing changed but the fee; 6 the chain is away, try again; 7 sent, and unknown what became of it: look before you \
try again.";

/// An end that is no success, and says itself by which exit code: for verbs whose answer a script reads from it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ExitStatus {
    pub code: u8,
    pub text: String,
}

/// The exit code that tells a script what kind of error this was.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(ends) = error.downcast_ref::<ExitStatus>() {
        return ends.code;
    }
    if error.chain().any(|cause| cause.is::<NotSigned>()) {
        return EXIT_NOT_SIGNED;
    }
    match chain_error(error) {
        Some(ChainError::Refused { .. } | ChainError::Failed { .. }) => EXIT_REFUSED,
        Some(error) if error.is_uncertain() => EXIT_UNCERTAIN,
        Some(ChainError::Unreachable { .. } | ChainError::TimedOut { .. } | ChainError::Dropped { .. }) => {
            EXIT_UNREACHABLE
        }
        _ => EXIT_FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::RunId;
    use std::time::Duration;

    /// Asks for consent with `typed` as what somebody answers.
    fn answer(yes: bool, json: bool, typed: Option<&str>) -> (Option<NotSigned>, usize) {
        let (mut out, mut aside) = (Vec::new(), Vec::new());
        let mut asked = 0;
        let mut ask = || {
            asked += 1;
            Ok(typed.map(str::to_owned))
        };
        let mut output = Output::new(json, &mut out, &mut aside, &mut ask);
        let done = output.confirm(yes);
        (done.err().map(|error| *error.downcast_ref::<NotSigned>().unwrap()), asked)
    }

    #[test]
    fn only_a_yes_is_a_yes() {
        for typed in ["y\n", "Y\n", "yes\n"] {
            assert_eq!(answer(false, false, Some(typed)), (None, 1), "{typed}");
        }
        for typed in ["", "\n", "n\n", "ye\n", "sign\n"] {
            assert_eq!(answer(false, false, Some(typed)), (Some(NotSigned::Declined), 1), "{typed}");
        }
    }

    #[test]
    fn without_a_terminal_nothing_is_signed_unless_yes_is_given() {
        assert_eq!(answer(false, false, None), (Some(NotSigned::NobodyToAsk), 1));
        assert_eq!(answer(true, false, None), (None, 0));
    }

    #[test]
    fn json_never_asks() {
        assert_eq!(answer(false, true, Some("y\n")), (Some(NotSigned::JsonNeedsYes), 0));
        assert_eq!(answer(true, true, None), (None, 0));
    }

    #[test]
    fn an_exit_code_tells_what_may_be_tried_again() {
        let doing = || "claiming".to_owned();
        let waited = Duration::from_secs(1);
        let code = |error: ChainError| exit_code(&anyhow::Error::from(error).context("more"));
        assert_eq!(code(ChainError::Failed { doing: doing(), reason: String::new() }), EXIT_REFUSED);
        assert_eq!(code(ChainError::TimedOut { doing: doing(), waited, sent: true }), EXIT_UNCERTAIN);
        assert_eq!(code(ChainError::TimedOut { doing: doing(), waited, sent: false }), EXIT_UNREACHABLE);
        assert_eq!(code(ChainError::Uncertain { doing: doing(), reason: String::new() }), EXIT_UNCERTAIN);
        assert_eq!(code(ChainError::NoSuchRun(RunId(1))), EXIT_FAILED);
        assert_eq!(exit_code(&anyhow::anyhow!("a file")), EXIT_FAILED);
        assert_eq!(exit_code(&anyhow::Error::from(NotSigned::Declined).context("x")), EXIT_NOT_SIGNED);
    }
}
