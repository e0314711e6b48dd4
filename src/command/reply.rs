//! Answers of commands.

use crate::pg::error::Result;
use docshard_core::error::{Kind, error};
use docshard_core::values::document::bson::write::{Item, Writer};
use docshard_core::values::document::raw::RawValue;
use docshard_core::values::document::value::Value;
use docshard_core::values::document::write::{self, Part};
use docshard_core::values::document::{ext_json, raw};
use serde_json::Value as Json;
use std::borrow::Cow;

/// A document of a list or a cursor.
#[derive(Debug)]
pub enum Document {
    /// a stored document: jsonb's bytes
    Stored(Vec<u8>),
    /// a document that a command has made, with its fields in order, and the same document as jsonb's bytes
    Made(Value, Vec<u8>),
}

impl Document {
    /// Makes a document of JSON, with Extended JSON in it.
    pub fn made(json: &Json) -> Result<Self> {
        let value = ext_json::from_json(json)?;
        let bytes = write::value(&value)?;
        Ok(Self::Made(value, bytes))
    }

    /// The bytes of the document as jsonb.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Stored(bytes) | Self::Made(_, bytes) => bytes,
        }
    }

    fn item(&self) -> Result<Item<'_>> {
        match self {
            Self::Stored(bytes) => stored(bytes),
            Self::Made(value, _) => Ok(Item::Value(value)),
        }
    }
}

fn stored(bytes: &[u8]) -> Result<Item<'_>> {
    let not_a_document = || error!(Kind::InternalError, "the result is not a document");
    raw::document(bytes).map(RawValue::Object).map(Item::Stored).ok_or_else(not_a_document)
}

#[derive(Debug)]
pub enum ReplyNode {
    Value(Value),
    /// an integer that is 64 bits wide in BSON
    Long(i64),
    /// a stored document: jsonb's bytes
    Document(Vec<u8>),
    Documents(Vec<Document>),
    /// an object
    Object(Vec<(&'static str, ReplyNode)>),
}

impl From<Json> for ReplyNode {
    /// Converts JSON that docshard has made, with Extended JSON in it.
    fn from(json: Json) -> Self {
        ReplyNode::Value(ext_json::from_json(&json).unwrap_or(Value::Null))
    }
}

impl From<Value> for ReplyNode {
    fn from(value: Value) -> Self {
        ReplyNode::Value(value)
    }
}

impl ReplyNode {
    fn part(&self) -> Result<Part<'_>> {
        let document = |bytes| -> Result<Part<'_>> {
            let not_a_document = || error!(Kind::InternalError, "the result is not a document");
            raw::document(bytes).map(Part::Stored).ok_or_else(not_a_document)
        };
        Ok(match self {
            ReplyNode::Value(value) => Part::Owned(value.clone()),
            ReplyNode::Long(value) => Part::Owned(integer(*value)),
            ReplyNode::Document(bytes) => document(bytes)?,
            ReplyNode::Documents(documents) => {
                Part::Array(documents.iter().map(|shown| document(shown.bytes())).collect::<Result<_>>()?)
            }
            ReplyNode::Object(fields) => Part::Object(
                fields
                    .iter()
                    .map(|(name, node)| Ok((Cow::Borrowed(*name), node.part()?)))
                    .collect::<Result<Vec<_>>>()?,
            ),
        })
    }

    fn write(&self, name: &str, writer: &mut Writer) -> Result<()> {
        match self {
            ReplyNode::Value(value) => writer.field(name, Item::Value(value))?,
            ReplyNode::Long(value) => writer.field(name, Item::Long(*value))?,
            ReplyNode::Document(bytes) => writer.field(name, stored(bytes)?)?,
            ReplyNode::Documents(documents) => {
                writer.begin_array(name)?;
                for (position, document) in documents.iter().enumerate() {
                    writer.field(&position.to_string(), document.item()?)?;
                }
                writer.end()?;
            }
            ReplyNode::Object(fields) => {
                writer.begin_document(name)?;
                for (name, node) in fields {
                    node.write(name, writer)?;
                }
                writer.end()?;
            }
        }
        Ok(())
    }
}

/// The fields of an answer. The field `ok` is added at the end when it is encoded.
#[derive(Debug)]
pub struct Reply {
    fields: Vec<(Cow<'static, str>, ReplyNode)>,
    ok: bool,
}

impl Reply {
    pub fn ok() -> Self {
        Self { fields: Vec::new(), ok: true }
    }

    pub fn failed() -> Self {
        Self { fields: Vec::new(), ok: false }
    }

    pub fn of(json: Json) -> Self {
        let Json::Object(map) = json else { return Self::ok() };
        let fields = map.into_iter().filter(|(name, _)| name != "ok");
        Self { fields: fields.map(|(name, value)| (Cow::Owned(name), ReplyNode::from(value))).collect(), ok: true }
    }

    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, node: impl Into<ReplyNode>) -> Self {
        self.fields.push((name.into(), node.into()));
        self
    }

    pub fn get(&self, name: &str) -> Option<&ReplyNode> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, node)| node)
    }

    /// The answer as jsonb.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        let mut fields = Vec::with_capacity(self.fields.len() + 1);
        for (name, node) in &self.fields {
            fields.push((Cow::Borrowed(&**name), node.part()?));
        }
        fields.push((Cow::Borrowed("ok"), Part::Owned(integer(i64::from(self.ok)))));
        write::answer(&Part::Object(fields))
    }

    /// The answer as BSON, with the fields in their order.
    pub fn bson(&self) -> Result<Vec<u8>> {
        let mut writer = Writer::new();
        for (name, node) in &self.fields {
            node.write(name, &mut writer)?;
        }
        writer.field("ok", Item::Double(if self.ok { 1.0 } else { 0.0 }))?;
        writer.finish()
    }
}

pub fn integer(n: i64) -> Value {
    Value::Number(docshard_core::values::document::number::Number::int(n))
}
