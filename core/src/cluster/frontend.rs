//! The router's side of PostgreSQL's protocol 3, after the login: encodes statements, and decodes the answers of a server that is not
//! trusted. Pure: the caller reads and writes the socket.
//!
//! A message is judged by its header, before any of it is kept. Notices, and what an error's texts have beyond [`MAX_TEXT`], are
//! discarded as they arrive. Buffers grow with what has arrived, not with what a header announces.
//!
//! # Invariants
//! - A message is accepted only where the protocol allows it as an answer to what was sent. Anything else, a message of more than
//!   [`MAX_ROW`], and a change of a setting that the router relies on, is a violation, after which nothing more is decoded.
//! - A row has the columns that the statement's sender has declared.
//! - In a pipeline a statement's answer ends with its last message, and after an error all answers up to the synchronisation point are
//!   [`Answer::Skipped`]. Outside of one, each statement has a synchronisation point of its own, which ends its answer.

use crate::sql::column::{self, Columns};
use std::collections::VecDeque;
use std::ops::Range;

mod report;

use self::report::ReportReader;
pub use self::report::{MAX_TEXT, Report, clipped};

/// The longest row. The longest rows of docshard's functions are the states of groups, which `docshard.max_expression_memory` limits to
/// 100 MB by default.
pub const MAX_ROW: usize = 256 << 20;

/// The longest message of any other kind that is kept.
const MAX_SHORT: usize = 30_000;

/// The most bytes of notices, descriptions and reports of settings between two answers.
const MAX_UNASKED: usize = 16 << 20;

/// How many bytes are read at once, at least and at most.
const READ: (usize, usize) = (32 << 10, 1 << 20);

/// Size of a message's header, its kind and length, in bytes.
const HEADER: usize = 5;

/// Settings whose values the router relies on. A server reports a change of them.
pub const RELIED_ON: [&str; 9] = [
    "server_version",
    "server_encoding",
    "client_encoding",
    "integer_datetimes",
    "standard_conforming_strings",
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "in_hot_standby",
];

/// A part of the server's answer to a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A row: for each column its length as a big-endian `i32`, -1 for NULL, and its bytes. It was validated.
    Row(Vec<u8>),
    /// The end of a command, with its tag.
    Done(String),
    /// A statement that was not executed, after an error in the pipeline.
    Skipped,
    /// A synchronisation point of a pipeline.
    Sync,
    /// An error of the server.
    Error(Box<Report>),
}

impl Answer {
    /// The row count of the command's tag; 0 without one.
    pub fn affected(&self) -> u64 {
        let Self::Done(tag) = self else { return 0 };
        tag.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0)
    }
}

/// The server's transaction, as its last synchronisation point says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transaction {
    /// there is none
    None,
    /// it is in order
    Open,
    /// it can only be rolled back
    Failed,
}

/// The next message of a statement's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// the confirmation that it was prepared; `only`: it is not executed
    Prepared { only: bool },
    /// the confirmation that its parameters were accepted
    Bound,
    /// a row, or the end of the command
    Rows,
    /// any message that answers the texts of a simple query
    Texts,
    /// no message: the answer is complete
    Ended,
    /// the synchronisation point
    Sync,
}

/// A statement whose answer is outstanding.
#[derive(Debug)]
struct Expected {
    stage: Stage,
    /// true if it has a synchronisation point of its own
    syncs: bool,
    /// the declared columns of its rows
    columns: Columns,
}

/// A message of which not all is kept.
#[derive(Debug)]
enum Long {
    None,
    /// the number of bytes to discard
    Discarded(usize),
    Error(ReportReader),
}

/// What is sent to a server, and what it has answered.
#[derive(Debug)]
pub struct Frontend {
    output: Vec<u8>,
    written: usize,
    /// Initialised; only `start..end` has arrived and is not decoded.
    input: Vec<u8>,
    start: usize,
    end: usize,
    long: Long,
    expected: VecDeque<Expected>,
    /// The part of an answer that is decoded and not yet taken by the caller. `Some(None)` is the end of a statement's answer.
    next: Option<Option<Answer>>,
    /// True after an error, until the next synchronisation point.
    skipping: bool,
    pipeline: bool,
    transaction: Transaction,
    settings: Vec<(String, String)>,
    unasked: usize,
    violation: Option<String>,
    farewell: Option<Box<Report>>,
}

impl Frontend {
    /// The state after the login. `settings`: the values of [`RELIED_ON`] that the server has reported.
    pub fn new(settings: Vec<(String, String)>) -> Self {
        Self {
            output: Vec::new(),
            written: 0,
            input: Vec::new(),
            start: 0,
            end: 0,
            long: Long::None,
            expected: VecDeque::new(),
            next: None,
            skipping: false,
            pipeline: false,
            transaction: Transaction::None,
            settings,
            unasked: 0,
            violation: None,
            farewell: None,
        }
    }

    // ---- statements ----

    /// Begins a pipeline; false while an answer is outstanding.
    pub fn enter_pipeline(&mut self) -> bool {
        self.pipeline |= self.expected.is_empty();
        self.pipeline
    }

    /// Ends a pipeline; false while an answer is outstanding.
    pub fn exit_pipeline(&mut self) -> bool {
        let ends = self.expected.is_empty() && self.next.is_none();
        self.pipeline &= !ends;
        ends
    }

    /// Prepares a statement. `name` and `sql` end with NUL, and have none before.
    pub fn prepare(&mut self, name: &[u8], sql: &[u8], types: &[u32]) {
        self.parse(name, sql, types);
        self.expect(Stage::Prepared { only: true }, None);
    }

    /// Executes a statement that was prepared. `parameters`: what a Bind message has after the names; `columns`: its rows' columns.
    pub fn execute(&mut self, name: &[u8], parameters: &[u8], columns: Columns) {
        self.bind(name, parameters);
        self.expect(Stage::Bound, columns);
    }

    /// Prepares an unnamed statement, and executes it.
    pub fn prepare_and_execute(&mut self, sql: &[u8], types: &[u32], parameters: &[u8], columns: Columns) {
        self.parse(b"\0", sql, types);
        self.bind(b"\0", parameters);
        self.expect(Stage::Prepared { only: false }, columns);
    }

    /// Executes any number of statements in one text; false in a pipeline. `columns`: those of the rows of all statements.
    pub fn query(&mut self, sql: &[u8], columns: Columns) -> bool {
        if !self.pipeline {
            self.message(b'Q', &[sql]);
            self.expected.push_back(Expected { stage: Stage::Texts, syncs: true, columns });
        }
        !self.pipeline
    }

    /// Sends a pipeline's synchronisation point.
    pub fn sync(&mut self) {
        self.message(b'S', &[]);
        self.expected.push_back(Expected { stage: Stage::Sync, syncs: false, columns: None });
    }

    /// Requests the outstanding answers of a pipeline.
    pub fn request_flush(&mut self) {
        self.message(b'H', &[]);
    }

    fn expect(&mut self, stage: Stage, columns: Columns) {
        if !self.pipeline {
            self.message(b'S', &[]);
        }
        self.expected.push_back(Expected { stage, syncs: !self.pipeline, columns });
    }

    fn parse(&mut self, name: &[u8], sql: &[u8], types: &[u32]) {
        let count = u16::try_from(types.len()).unwrap_or(u16::MAX).to_be_bytes();
        let types: Vec<u8> = types.iter().flat_map(|of| of.to_be_bytes()).collect();
        self.message(b'P', &[name, sql, &count, &types]);
    }

    fn bind(&mut self, name: &[u8], parameters: &[u8]) {
        self.message(b'B', &[b"\0", name, parameters]);
        // Execute the unnamed portal, without a limit of rows.
        self.message(b'E', &[b"\0", &[0; 4]]);
    }

    fn message(&mut self, kind: u8, parts: &[&[u8]]) {
        let length = 4 + parts.iter().map(|part| part.len()).sum::<usize>();
        self.output.push(kind);
        self.output.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        parts.iter().for_each(|part| self.output.extend_from_slice(part));
    }

    /// What is to be written to the socket.
    pub fn unwritten(&self) -> &[u8] {
        &self.output[self.written..]
    }

    /// Notes that this number of bytes was written.
    pub fn wrote(&mut self, bytes: usize) {
        self.written = self.written.saturating_add(bytes);
        if self.written >= self.output.len() {
            self.written = 0;
            self.output.clear();
            self.output.shrink_to(READ.1);
        }
    }

    // ---- answers ----

    /// Where to read what has arrived, before [`Frontend::received`].
    pub fn space(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.input.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let wanted = self.end + self.end.clamp(READ.0, READ.1);
        if self.input.len() < wanted {
            self.input.resize(wanted, 0);
        }
        &mut self.input[self.end..]
    }

    /// Notes that this number of bytes was read.
    pub fn received(&mut self, bytes: usize) {
        self.end += bytes;
        if self.end - self.start > MAX_ROW + MAX_UNASKED {
            self.violates("too much was answered before the request was complete".into());
        }
    }

    /// True while the next part of an answer has not arrived.
    pub fn is_busy(&mut self) -> bool {
        self.decode();
        self.next.is_none() && !self.expected.is_empty()
    }

    /// True while an answer is outstanding, or in a pipeline.
    pub fn is_active(&self) -> bool {
        !self.expected.is_empty() || self.next.is_some() || self.pipeline
    }

    /// The next part of an answer, None at its end and without one. Call it if [`Frontend::is_busy`] is false.
    pub fn take(&mut self) -> Option<Answer> {
        self.decode();
        self.next.take().flatten()
    }

    /// The transaction outside of a pipeline, when no answer is outstanding.
    pub fn transaction(&self) -> Transaction {
        self.transaction
    }

    /// What the server has sent in violation of the protocol.
    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    /// The error with which the server has announced that it closes the connection, though nothing was asked.
    pub fn farewell(&self) -> Option<&Report> {
        self.farewell.as_deref()
    }

    fn violates(&mut self, what: String) {
        self.violation.get_or_insert(what);
        (self.start, self.end, self.input) = (0, 0, Vec::new());
        self.long = Long::None;
    }

    fn decode(&mut self) {
        if self.next.is_some() || self.violation.is_some() || self.farewell.is_some() {
            return;
        }
        match self.decoded() {
            Ok(next) => self.next = next,
            Err(what) => self.violates(what),
        }
        if self.next.is_some() {
            self.unasked = 0;
        }
    }

    /// Decodes up to the next part of an answer; None if it has not arrived.
    fn decoded(&mut self) -> Result<Option<Option<Answer>>, String> {
        loop {
            if let Some(front) = self.expected.front_mut() {
                if front.stage == Stage::Ended && !front.syncs {
                    self.expected.pop_front();
                    return Ok(Some(None));
                }
                if self.skipping && front.stage != Stage::Sync {
                    front.stage = Stage::Ended;
                    return Ok(Some(Some(Answer::Skipped)));
                }
            }
            if let Some(report) = self.read_long()? {
                match self.failed(report) {
                    Some(answer) => return Ok(Some(Some(answer))),
                    None => return Ok(None),
                }
            }
            if !matches!(self.long, Long::None) {
                return Ok(None);
            }
            let Some(header) = self.input.get(self.start..self.end).and_then(|input| input.first_chunk::<HEADER>())
            else {
                return Ok(None);
            };
            let [kind, length @ ..] = *header;
            let length = usize::try_from(i32::from_be_bytes(length)).ok().and_then(|length| length.checked_sub(4));
            let length = length.ok_or_else(|| format!("message {} without length", shown(kind)))?;
            if self.begins_long(kind, length)? {
                continue;
            }
            let most = if kind == b'D' { MAX_ROW } else { MAX_SHORT };
            if length > most {
                return Err(format!("message {} of {length} bytes", shown(kind)));
            }
            self.check(kind)?;
            let body = self.start + HEADER..self.start + HEADER + length;
            if body.end > self.end {
                return Ok(None);
            }
            if let Some(part) = self.answer(kind, body)? {
                return Ok(Some(part));
            }
        }
    }

    /// Begins a message that is kept in part; false if the message is of another kind.
    fn begins_long(&mut self, kind: u8, length: usize) -> Result<bool, String> {
        let stage = self.expected.front().map(|front| front.stage);
        self.long = match kind {
            b'N' => Long::Discarded(length),
            b'T' if stage == Some(Stage::Texts) => Long::Discarded(length),
            // An error can also arrive at a synchronisation point, when a commit fails.
            b'E' => Long::Error(ReportReader::new(length)),
            _ => return Ok(false),
        };
        if matches!(self.long, Long::Discarded(_)) {
            self.unasked(length)?;
        }
        self.start += HEADER;
        Ok(true)
    }

    fn unasked(&mut self, length: usize) -> Result<(), String> {
        self.unasked = self.unasked.saturating_add(HEADER + length);
        if self.unasked > MAX_UNASKED {
            return Err(format!("more than {} MB of notices and settings", MAX_UNASKED >> 20));
        }
        Ok(())
    }

    /// Reads on in a message that is kept in part. Returns the report at the end of an error message.
    fn read_long(&mut self) -> Result<Option<Box<Report>>, String> {
        let arrived = &self.input[self.start..self.end];
        match &mut self.long {
            Long::None => {}
            Long::Discarded(left) => {
                let now = arrived.len().min(*left);
                *left -= now;
                self.start += now;
                if *left == 0 {
                    self.long = Long::None;
                }
            }
            Long::Error(reader) => {
                self.start += reader.read(arrived);
                if reader.is_complete() {
                    let Long::Error(reader) = std::mem::replace(&mut self.long, Long::None) else { return Ok(None) };
                    return reader.report().map(|report| Some(Box::new(report)));
                }
            }
        }
        Ok(None)
    }

    /// Handles an error that the server has reported. None if no statement is outstanding: then the server closes the connection.
    fn failed(&mut self, report: Box<Report>) -> Option<Answer> {
        let Some(front) = self.expected.front_mut() else {
            self.farewell = Some(report);
            return None;
        };
        match front.stage {
            Stage::Texts | Stage::Sync => {}
            _ => {
                front.stage = Stage::Ended;
                self.skipping = !front.syncs;
            }
        }
        Some(Answer::Error(report))
    }

    /// Refuses a message that is not an answer to what was sent.
    fn check(&self, kind: u8) -> Result<(), String> {
        let front = self.expected.front();
        let expected = match (kind, front.map(|front| front.stage)) {
            (b'S', _) => true,
            (b'1', Some(Stage::Prepared { .. })) | (b'2', Some(Stage::Bound)) => true,
            (b'D' | b'C' | b'I', Some(Stage::Rows | Stage::Texts)) => true,
            (b'Z', Some(Stage::Sync | Stage::Texts)) => true,
            (b'Z', Some(Stage::Ended)) => front.is_some_and(|front| front.syncs),
            _ => false,
        };
        if expected { Ok(()) } else { Err(format!("unexpected message {}", shown(kind))) }
    }

    /// Decodes a whole message that [`Frontend::check`] has accepted.
    fn answer(&mut self, kind: u8, body: Range<usize>) -> Result<Option<Option<Answer>>, String> {
        if kind == b'D' {
            return self.row(body).map(|row| Some(Some(Answer::Row(row))));
        }
        let (length, bytes) = (body.len(), &self.input[body.clone()]);
        let malformed = || format!("malformed message {}", shown(kind));
        self.start = body.end;
        if kind == b'S' {
            let (name, value) = setting(bytes).ok_or_else(malformed)?;
            if self.settings.iter().any(|(known, before)| known == name && before != value) {
                return Err(format!("the setting {name} has changed"));
            }
            return self.unasked(length).map(|()| None);
        }
        let Some(front) = self.expected.front_mut() else { return Err(malformed()) };
        Ok(match kind {
            b'1' if length == 0 => match front.stage {
                Stage::Prepared { only: true } => {
                    front.stage = Stage::Ended;
                    Some(Some(Answer::Done(String::new())))
                }
                _ => {
                    front.stage = Stage::Bound;
                    None
                }
            },
            b'2' if length == 0 => {
                front.stage = Stage::Rows;
                None
            }
            b'C' | b'I' => {
                let tag = bytes.strip_suffix(b"\0").unwrap_or(bytes);
                let tag = std::str::from_utf8(tag).ok().filter(|tag| !tag.contains('\0')).ok_or_else(malformed)?;
                if front.stage == Stage::Rows {
                    front.stage = Stage::Ended;
                }
                Some(Some(Answer::Done(tag.to_owned())))
            }
            b'Z' => {
                self.transaction = match bytes {
                    b"I" => Transaction::None,
                    b"T" => Transaction::Open,
                    b"E" => Transaction::Failed,
                    _ => return Err(malformed()),
                };
                let is_sync = front.stage == Stage::Sync;
                self.skipping = false;
                self.expected.pop_front();
                Some(is_sync.then_some(Answer::Sync))
            }
            _ => return Err(malformed()),
        })
    }

    /// Validates a row, and takes its columns.
    fn row(&mut self, body: Range<usize>) -> Result<Vec<u8>, String> {
        let (count, columns) = self.input[body.clone()].split_first_chunk::<2>().ok_or("malformed row")?;
        let declared = self.expected.front().and_then(|front| front.columns.as_deref());
        column::check(columns, u16::from_be_bytes(*count), declared)?;
        let columns = body.start + 2..body.end;
        if columns.len() <= READ.1 {
            self.start = body.end;
            return Ok(self.input[columns].to_vec());
        }
        // The buffer itself, so that a long row is in memory once, and its memory is not kept.
        let tail = self.input[body.end..self.end].to_vec();
        (self.start, self.end) = (0, tail.len());
        let mut row = std::mem::replace(&mut self.input, tail);
        row.truncate(columns.end);
        row.drain(..columns.start);
        row.shrink_to_fit();
        Ok(row)
    }
}

/// A message's kind, for an error.
fn shown(kind: u8) -> String {
    if kind.is_ascii_graphic() { format!("\"{}\"", char::from(kind)) } else { format!("{kind:#04x}") }
}

/// Name and value of a setting that the server reports.
fn setting(body: &[u8]) -> Option<(&str, &str)> {
    let (name, value) = std::str::from_utf8(body).ok()?.strip_suffix('\0')?.split_once('\0')?;
    (!value.contains('\0')).then_some((name, value))
}
