//! Reads an error that a server reports, of any length, and keeps the beginning of each text.

/// The most bytes that are kept of each text of an error. The client gets the texts, and the server's log has them.
pub const MAX_TEXT: usize = 16 << 10;

/// Decodes a text of an error. A text of more than [`MAX_TEXT`] bytes is truncated, and ` …` is appended.
pub fn clipped(bytes: &[u8]) -> String {
    match bytes.split_at_checked(MAX_TEXT) {
        Some((kept, [_, ..])) => {
            String::from_utf8_lossy(kept).trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned() + " …"
        }
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}

/// An error of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    severity: Option<String>,
    /// The SQLSTATE; None if it is malformed.
    pub sqlstate: Option<[u8; 5]>,
    /// The error in one sentence.
    pub message: Option<String>,
    /// The details of the error.
    pub detail: Option<String>,
    /// Advice on how to avoid the error.
    pub hint: Option<String>,
    /// Where the error happened.
    pub context: Option<String>,
}

impl Report {
    /// True if the server closes the connection after the error.
    pub fn is_fatal(&self) -> bool {
        self.severity.as_deref() != Some("ERROR")
    }
}

#[derive(Debug)]
pub(super) struct ReportReader {
    /// the bytes that have not arrived
    left: usize,
    report: Report,
    /// the kind of the text that is being read; None before it, 0 after the last one
    kind: Option<u8>,
    /// the beginning of the text; one byte more than [`MAX_TEXT`] shows that it is longer
    text: Vec<u8>,
}

impl ReportReader {
    pub(super) fn new(length: usize) -> Self {
        Self { left: length, report: Report::default(), kind: None, text: Vec::new() }
    }

    /// Returns how many of these bytes belong to the report.
    pub(super) fn read(&mut self, arrived: &[u8]) -> usize {
        let taken = arrived.len().min(self.left);
        self.left -= taken;
        let mut rest = &arrived[..taken];
        while let Some((&first, tail)) = rest.split_first() {
            match self.kind {
                None => (self.kind, rest) = (Some(first), tail),
                // Nothing may follow the last text.
                Some(0) => break,
                Some(kind) => {
                    let length = memchr::memchr(0, rest).unwrap_or(rest.len());
                    self.keep(&rest[..length]);
                    rest = rest.get(length..).unwrap_or_default();
                    if let Some((_, tail)) = rest.split_first() {
                        rest = tail;
                        self.end(kind);
                    }
                }
            }
        }
        taken
    }

    pub(super) fn is_complete(&self) -> bool {
        self.left == 0
    }

    /// The report, at its end.
    pub(super) fn report(self) -> Result<Report, String> {
        if self.kind == Some(0) { Ok(self.report) } else { Err("malformed error".to_owned()) }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = (MAX_TEXT + 1 - self.text.len()).min(bytes.len());
        self.text.extend_from_slice(&bytes[..room]);
    }

    /// A text has ended.
    fn end(&mut self, kind: u8) {
        self.kind = None;
        let bytes = std::mem::take(&mut self.text);
        let text = clipped(&bytes);
        let report = &mut self.report;
        match kind {
            b'V' => report.severity = Some(text),
            b'C' => {
                let code = <[u8; 5]>::try_from(bytes).ok();
                report.sqlstate = code.filter(|code| code.iter().all(|c| c.is_ascii_digit() || c.is_ascii_uppercase()));
            }
            b'M' => report.message = Some(text),
            b'D' => report.detail = Some(text),
            b'H' => report.hint = Some(text),
            b'W' => report.context = Some(text),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_if_it_is_longer_than_the_limit() {
        let whole = "x".repeat(MAX_TEXT);
        let read = |text: &str| {
            let bytes = format!("VERROR\0M{text}\0\0");
            let mut reader = ReportReader::new(bytes.len());
            bytes.as_bytes().chunks(1000).for_each(|piece| assert_eq!(reader.read(piece), piece.len()));
            reader.report().unwrap().message.unwrap()
        };
        for (text, expected) in [
            (whole.clone(), whole.clone()),
            (format!("{whole}x"), format!("{whole} …")),
            (format!("{whole}xy"), format!("{whole} …")),
            (format!("{}ä", &whole[1..]), format!("{} …", &whole[1..])),
        ] {
            assert_eq!(clipped(text.as_bytes()), expected);
            assert_eq!(read(&text), expected);
        }
    }
}
