//! Output of a command, its questions and its exit: text, or one JSON object with `--json`.

use anyhow::bail;
use daemon::exit::{self, EXIT_NOT_SIGNED, ExitStatus};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::{
    fmt,
    io::{self, BufRead as _, IsTerminal as _, Write},
};

/// Reason of an exit without a signature.
const DECLINED: &str = "nothing was signed";
const NO_TERMINAL: &str =
    "nothing was signed: there is no terminal to confirm at. Add --yes to sign without confirmation";
const JSON_NEEDS_YES: &str =
    "nothing was signed: --json does not ask. Add --yes to sign, or --dry-run to see only the preview";

fn not_signed(why: &str) -> anyhow::Error {
    ExitStatus { code: EXIT_NOT_SIGNED, text: why.to_owned() }.into()
}

/// Form of the standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    /// One object with `preview`, `result` and, after a failure, `error`.
    Json,
    /// Only the fields of the result and, after a failure, `error`.
    BareJson,
}

/// Output of one command, and its questions.
pub struct Output<'a> {
    form: Form,
    out: &'a mut dyn Write,
    /// Receives previews, questions and notes, which no script reads.
    err: &'a mut dyn Write,
    /// Reads a line from the terminal; `None` if there is no terminal.
    ask: &'a mut dyn FnMut() -> io::Result<Option<String>>,
    preview: Value,
    result: Value,
}

impl<'a> Output<'a> {
    pub fn new(
        json: bool,
        out: &'a mut dyn Write,
        err: &'a mut dyn Write,
        ask: &'a mut dyn FnMut() -> io::Result<Option<String>>,
    ) -> Output<'a> {
        let form = if json { Form::Json } else { Form::Text };
        Output { form, out, err, ask, preview: Value::Null, result: Value::Null }
    }

    /// Returns whether the output is one JSON object at the end.
    pub fn is_json(&self) -> bool {
        self.form != Form::Text
    }

    /// Prints the JSON object as the result's fields, without a preview: for commands that do not sign.
    pub fn bare_json(&mut self) {
        if self.form == Form::Json {
            self.form = Form::BareJson;
        }
    }

    /// Reports the command's result: prints `text` at once, or `value` at the end.
    pub fn result(&mut self, text: &str, value: Value) -> io::Result<()> {
        if !self.is_json() {
            writeln!(self.out, "{}", text.trim_end())?;
        }
        match (&mut self.result, value) {
            (Value::Object(known), Value::Object(more)) => known.extend(more),
            (result, value) => *result = value,
        }
        Ok(())
    }

    /// Prints a part of a result at once, without a line break. Omitted in JSON.
    pub fn stream(&mut self, text: &str) -> io::Result<()> {
        if self.is_json() {
            return Ok(());
        }
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Prints a line for people, which is not part of the result. Omitted in JSON.
    pub fn note(&mut self, text: &str) -> io::Result<()> {
        if self.is_json() { Ok(()) } else { writeln!(self.err, "{text}") }
    }

    /// Prints the JSON object, if requested, with the error if there was one.
    pub fn finish(self, done: &anyhow::Result<()>) -> io::Result<()> {
        let mut object = match (self.form, self.result) {
            (Form::Text, _) => return Ok(()),
            (Form::BareJson, Value::Object(fields)) => fields,
            (Form::BareJson, _) => Map::new(),
            (Form::Json, result) => {
                Map::from_iter([("preview".to_owned(), self.preview), ("result".to_owned(), result)])
            }
        };
        if let Err(error) = done {
            object.insert("error".into(), error_as_json(error));
        }
        writeln!(self.out, "{}", Value::Object(object))
    }

    /// Shows the data to sign, as text or in the JSON object. `is_result` if the command ends with it.
    pub fn preview(&mut self, preview: &(impl fmt::Display + Serialize), is_result: bool) -> io::Result<()> {
        self.preview = serde_json::to_value(preview)?;
        if self.is_json() {
            return Ok(());
        }
        let to: &mut dyn Write = if is_result { self.out } else { self.err };
        write!(to, "{preview}")
    }

    /// Asks for a value that the flag `flag` can give.
    ///
    /// # Errors
    /// If there is no answer, or the user cannot be asked.
    pub fn question(&mut self, what: &str, flag: &str) -> anyhow::Result<String> {
        let missing = || anyhow::anyhow!("{} is missing: add {flag}", lower_first(what));
        if self.is_json() {
            bail!(missing());
        }
        write!(self.err, "{what}: ")?;
        self.err.flush()?;
        let answer = (self.ask)()?;
        if answer.is_none() {
            writeln!(self.err)?;
        }
        let answer = answer.map(|answer| answer.trim().to_owned()).filter(|answer| !answer.is_empty());
        answer.ok_or_else(missing)
    }

    /// Asks for confirmation of the shown data, unless `yes` confirms it in advance.
    ///
    /// # Errors
    /// Returns an [`ExitStatus`] if the user declines or cannot be asked, or the terminal's error.
    pub fn confirm(&mut self, yes: bool) -> anyhow::Result<()> {
        if yes {
            return Ok(());
        }
        if self.is_json() {
            bail!(not_signed(JSON_NEEDS_YES));
        }
        write!(self.err, "Sign? [y/N] ")?;
        self.err.flush()?;
        match (self.ask)()?.as_deref().map(str::trim) {
            Some("y" | "Y" | "yes") => Ok(()),
            Some(_) => bail!(not_signed(DECLINED)),
            None => {
                writeln!(self.err)?;
                bail!(not_signed(NO_TERMINAL))
            }
        }
    }
}

/// Runs a command with standard output, standard error and the terminal.
pub async fn with_output(
    json: bool,
    work: impl AsyncFnOnce(&mut Output<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (mut out, mut err, mut ask) = (Stdout, io::stderr(), ask_terminal);
    let mut output = Output::new(json, &mut out, &mut err, &mut ask);
    let done = work(&mut output).await;
    output.finish(&done)?;
    done
}

/// Standard output that ignores a closed pipe: a command in `… | head` still completes its work.
struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        ignore_closed_pipe(io::stdout().write(bytes), bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        ignore_closed_pipe(io::stdout().flush(), ())
    }
}

fn ignore_closed_pipe<T>(written: io::Result<T>, all: T) -> io::Result<T> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(all),
        written => written,
    }
}

/// Reads a line from the terminal; `None` if standard input is not a terminal.
fn ask_terminal() -> io::Result<Option<String>> {
    if !io::stdin().is_terminal() {
        return Ok(None);
    }
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(Some(answer))
}

fn lower_first(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

fn error_as_json(error: &anyhow::Error) -> Value {
    let mut object = json!({ "message": format!("{error:#}"), "exit_code": exit::code(error) });
    if let Some(chain_client::ChainError::Refused { pallet, error, docs, .. }) = exit::chain_error(error) {
        object["refused"] = json!({ "pallet": pallet, "error": error, "docs": docs });
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks for confirmation and answers `typed`. Returns the reason for not signing, and the number of questions.
    fn answer(yes: bool, json: bool, typed: Option<&str>) -> (Option<String>, usize) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut asked = 0;
        let mut ask = || {
            asked += 1;
            Ok(typed.map(str::to_owned))
        };
        let mut output = Output::new(json, &mut out, &mut err, &mut ask);
        let done = output.confirm(yes);
        let reason = done.err().map(|error| {
            assert_eq!(exit::code(&error), EXIT_NOT_SIGNED);
            error.to_string()
        });
        (reason, asked)
    }

    fn because(reason: &str) -> Option<String> {
        Some(reason.to_string())
    }

    #[test]
    fn only_a_yes_is_a_yes() {
        for typed in ["y\n", "Y\n", "yes\n"] {
            assert_eq!(answer(false, false, Some(typed)), (None, 1), "{typed}");
        }
        for typed in ["", "\n", "n\n", "ye\n", "sign\n"] {
            assert_eq!(answer(false, false, Some(typed)), (because(DECLINED), 1), "{typed}");
        }
    }

    #[test]
    fn without_a_terminal_nothing_is_signed_unless_yes_is_given() {
        assert_eq!(answer(false, false, None), (because(NO_TERMINAL), 1));
        assert_eq!(answer(true, false, None), (None, 0));
    }

    #[test]
    fn json_never_asks() {
        assert_eq!(answer(false, true, Some("y\n")), (because(JSON_NEEDS_YES), 0));
        assert_eq!(answer(true, true, None), (None, 0));
    }

    #[test]
    fn bare_json_is_the_result_s_fields_and_the_error() {
        let (mut out, mut err, mut ask) = (Vec::new(), Vec::new(), || Ok(None));
        let mut output = Output::new(true, &mut out, &mut err, &mut ask);
        output.bare_json();
        output.stream("text").unwrap();
        output.result("text", json!({ "loss": 2.5 })).unwrap();
        output.finish(&Err(anyhow::anyhow!("a file"))).unwrap();
        let value: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value, json!({ "loss": 2.5, "error": { "message": "a file", "exit_code": 1 } }));
        assert!(err.is_empty());
    }
}
