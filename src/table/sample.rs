//! A random sample of a foreign table's rows, by `$sample`: all documents of all shards are equally likely to be chosen.

use super::column::Layout;
use super::scan::CollectionScan;
use crate::operation::arguments::{Arguments, Form};
use crate::operation::reading;
use crate::operation::table::AGGREGATE;
use crate::pg::error::Result;
use crate::pg::fdw::value::SqlValue;
use crate::pg::fdw::{Misfit, Scan, ScanPlan};
use serde_json::{Map, Value as Json, json};
use std::rc::Rc;

pub struct SampleScan {
    scan: CollectionScan,
    most: usize,
}

impl SampleScan {
    pub fn new(layout: Rc<Layout>, most: usize) -> Result<Self> {
        // As in a scan for another user, a value that does not fit does not raise an error by itself: see `take_misfit`.
        let columns = layout.numbers();
        Ok(Self { scan: CollectionScan::new(layout, &ScanPlan::default(), &columns, true)?, most })
    }
}

impl Scan for SampleScan {
    fn start(&mut self, _operands: Vec<Option<SqlValue>>, _limit: Option<u64>) -> Result<()> {
        super::scan::require_existing(self.scan.layout())?;
        if self.most == 0 {
            return Ok(());
        }
        let mut stages = vec![json!({"$sample": {"size": self.most}})];
        if let Some(fields) = self.scan.fields() {
            let mut kept: Map<String, Json> = fields.iter().map(|field| (field.clone(), 1.into())).collect();
            kept.entry("_id").or_insert_with(|| 1.into());
            stages.push(json!({"$project": kept}));
        }
        let options = json!({});
        let arguments = Arguments::parse(&options, Form::Options(AGGREGATE.function), AGGREGATE.options)?;
        let namespace = &self.scan.layout().options.namespace;
        let results = reading::aggregate(namespace, &stages.into(), &arguments)?;
        self.scan.read(results);
        Ok(())
    }

    fn next_row(&mut self, put: &mut dyn FnMut(i16, SqlValue) -> Result<()>) -> Result<bool> {
        self.scan.next_row(put)
    }

    fn take_misfit(&mut self) -> Option<Misfit> {
        self.scan.take_misfit()
    }

    fn refuse_newer(&self, command: u32) -> Result<()> {
        self.scan.refuse_newer(command)
    }

    fn stop(&mut self) {
        self.scan.stop();
    }

    fn explain(&self, _: Vec<Option<SqlValue>>, _: Option<u64>, _: bool) -> Result<Vec<(String, String)>> {
        Ok(Vec::new())
    }
}
