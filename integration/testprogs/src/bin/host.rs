//! A program with a Tokio of its own, which loads libraries that have another.

use std::path::Path;

use testprogs::{
    count,
    host::{self, Serve},
    service::Service,
};

struct Own(Service);

impl Serve for Own {
    fn begin(&self) {
        count::begin();
    }

    fn work(&self) {
        self.0.work();
    }

    fn write(&self, path: &Path) {
        count::write_truth(path).expect("the file can be written");
    }

    fn stop(&self) {}

    fn unload(self: Box<Self>) {}
}

fn main() {
    host::serve(Some(Box::new(Own(Service::start()))));
}
