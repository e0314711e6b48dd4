//! Reads an error that a server reports, of any length, and keeps the beginning of each text.

/// The most bytes that are kept of each text of an error. The client gets the texts, and the server's log has them.
pub const MAX_TEXT: usize = 16 << 10;

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
    text: Vec<u8>,
    clipped: bool,
}

impl ReportReader {
    pub(super) fn new(length: usize) -> Self {
        Self { left: length, report: Report::default(), kind: None, text: Vec::new(), clipped: false }
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
        let room = (MAX_TEXT - self.text.len()).min(bytes.len());
        self.clipped |= room < bytes.len();
        self.text.extend_from_slice(&bytes[..room]);
    }

    /// A text has ended.
    fn end(&mut self, kind: u8) {
        self.kind = None;
        let bytes = std::mem::take(&mut self.text);
        let mut text = String::from_utf8_lossy(&bytes).into_owned();
        if std::mem::take(&mut self.clipped) {
            text = text.trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned() + " …";
        }
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
