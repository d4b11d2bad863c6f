//! Objects that the target loads or unloads while it is recorded.
//!
//! In: what the target has mapped, looked at on a thread of its own. Out: links to
//! objects that came, on that thread; lines that tell of them. Never: a scan or an
//! attachment on the recording thread; a look at the target's mappings while no code
//! came or went, as `looks` says.
//!
//! The recording thread is asked before an object is attached to: it has to know the
//! object's task types before the first record of it.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use dial9_bpf_attach::{Attached, LateLinks, Links, Object, Target, Tracer};
use dial9_bpf_trace::metadata;

use crate::{
    identity,
    looks::{LOOK, Looks},
    objects::{Change, Scanner, Unusable},
    recording::Recording,
    status::Cost,
};

/// What the recording thread says.
#[derive(Debug)]
enum Order {
    Attach(Box<Object>),
    Drop(Vec<Links>),
}

/// What it hears.
#[derive(Debug)]
enum News {
    Come(Box<Object>),
    Gone(u8),
    Unusable(Unusable),
    /// The links to an object are live, after this time; what the kernel refused.
    Attached(u8, Duration, Vec<(&'static str, String)>),
    /// The kernel refused all.
    Refused(u8, String),
}

/// The recording thread's end.
#[derive(Debug)]
pub(crate) struct Late {
    told: Vec<metadata::Object>,
    watch: Option<Watch>,
}

#[derive(Debug)]
struct Watch {
    orders: Option<Sender<Order>>,
    news: Receiver<News>,
    thread: Option<JoinHandle<()>>,
}

impl Late {
    /// Looks for nothing; `traced` is all that is traced.
    pub(crate) fn none(traced: &[Object]) -> Self {
        let told = identity::objects(traced);
        Self { told, watch: None }
    }

    /// Looks for what comes and goes from now on; `traced` is there already.
    ///
    /// # Errors
    /// The system's, when it has no thread left.
    pub(crate) fn start(
        target: &Arc<Target>,
        scanner: Scanner,
        links: LateLinks,
        traced: &[Object],
    ) -> io::Result<Self> {
        let told = identity::objects(traced);
        let (orders, ordered) = mpsc::channel();
        let (tell, news) = mpsc::channel();
        let thread = Thread {
            target: Arc::clone(target),
            scanner,
            links,
            live: BTreeMap::new(),
            looks: Looks::begin(target.pid()),
            tell,
        };
        let thread = thread::Builder::new()
            .name("dial9-objects".to_owned())
            .spawn(move || thread.run(&ordered))?;
        let watch = Watch {
            orders: Some(orders),
            news,
            thread: Some(thread),
        };
        Ok(Self {
            told,
            watch: Some(watch),
        })
    }

    /// Takes note of what has come and gone. Returns what there is to say.
    pub(crate) fn hear(
        &mut self,
        recording: &mut Recording,
        tracer: &mut Tracer,
        cost: &mut Option<Cost>,
    ) -> Vec<String> {
        let mut said = Vec::new();
        while let Some(news) = self
            .watch
            .as_ref()
            .and_then(|watch| watch.news.try_recv().ok())
        {
            said.extend(self.take(news, recording, tracer, cost));
        }
        said
    }

    /// Ends the watch, with all links to what came late.
    pub(crate) fn stop(&mut self) {
        self.watch = None;
    }

    /// A row for each object, where there is more than the executable.
    pub(crate) fn rows(&self) -> Vec<(&'static str, String)> {
        if !self.has_more_than_executable() {
            return Vec::new();
        }
        let row = |(number, object): (usize, &metadata::Object)| {
            ("object", format!("{number}: {}", describe(object)))
        };
        self.told.iter().enumerate().map(row).collect()
    }

    fn has_more_than_executable(&self) -> bool {
        self.told.iter().any(|object| !object.is_executable)
    }

    fn take(
        &mut self,
        news: News,
        recording: &mut Recording,
        tracer: &mut Tracer,
        cost: &mut Option<Cost>,
    ) -> Vec<String> {
        match news {
            News::Come(object) => {
                self.told.push(identity::object(&object));
                recording.add_object(identity::object_types(&object), self.told.clone());
                if let Some(cost) = cost {
                    cost.add(object.plan());
                }
                self.order(Order::Attach(object));
                Vec::new()
            }
            News::Gone(number) => {
                let links = tracer.release(number);
                self.order(Order::Drop(links));
                vec![format!("unloaded: {}", self.path(number))]
            }
            News::Unusable(Unusable { path, reason }) => {
                let line = format!("missing: {path}: {reason}");
                recording.note_absent(&[(&path, reason)]);
                vec![line]
            }
            News::Attached(number, took, absent) => {
                let object = &mut self.told[usize::from(number)];
                let attached = format!(
                    "attached to {} in {} ms",
                    describe(object),
                    took.as_millis()
                );
                let absent = absent.into_iter();
                let absent = absent.map(|(name, reason)| (name.to_owned(), reason));
                object.absent.extend(absent);
                let path = &object.path;
                let misses = object.absent.iter();
                let misses =
                    misses.map(|(name, reason)| format!("missing: {name} in {path}: {reason}"));
                let said = [attached].into_iter().chain(misses).collect();
                recording.set_objects(self.told.clone());
                said
            }
            News::Refused(number, reason) => {
                let object = &mut self.told[usize::from(number)];
                object.sites = 0;
                let line = format!("missing: {}: {reason}", object.path);
                object.absent.push(("all".to_owned(), reason));
                recording.set_objects(self.told.clone());
                vec![line]
            }
        }
    }

    fn path(&self, number: u8) -> &str {
        &self.told[usize::from(number)].path
    }

    fn order(&self, order: Order) {
        if let Some(orders) = self.watch.as_ref().and_then(|watch| watch.orders.as_ref()) {
            // It ends only when told to.
            let _ = orders.send(order);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // It has no result.
            let _ = thread.join();
        }
    }
}

/// An object in one line.
fn describe(object: &metadata::Object) -> String {
    let metadata::Object {
        path,
        tokio_version,
        sites,
        ..
    } = object;
    let tokio = tokio_version.as_deref().unwrap_or("of unknown version");
    format!("{path}: Tokio {tokio}, {sites} sites")
}

/// The other thread.
#[derive(Debug)]
struct Thread {
    target: Arc<Target>,
    scanner: Scanner,
    links: LateLinks,
    /// By object.
    live: BTreeMap<u8, Vec<Links>>,
    looks: Looks,
    tell: Sender<News>,
}

impl Thread {
    fn run(mut self, orders: &Receiver<Order>) {
        loop {
            match orders.recv_timeout(LOOK) {
                Ok(Order::Attach(object)) => self.attach(&object),
                Ok(Order::Drop(links)) => drop(links),
                Err(RecvTimeoutError::Timeout) => self.look(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn look(&mut self) {
        if !self.looks.is_due() && !self.scanner.is_pending() {
            return;
        }
        // Of a process that is gone the recording thread hears by itself.
        for change in self.scanner.changes(&self.target).unwrap_or_default() {
            let news = match change {
                Change::Come(object) => News::Come(object),
                Change::Unusable(unusable) => News::Unusable(unusable),
                Change::Gone(number) => {
                    drop(self.live.remove(&number));
                    News::Gone(number)
                }
            };
            self.tell(news);
        }
    }

    fn attach(&mut self, object: &Object) {
        let tried = Instant::now();
        let number = object.number();
        let news = match self.links.attach(object) {
            Ok(Attached { links, absent }) => {
                self.live.insert(number, links);
                News::Attached(number, tried.elapsed(), absent)
            }
            Err(error) => News::Refused(number, format!("{:#}", anyhow::Error::from(error))),
        };
        self.tell(news);
    }

    fn tell(&self, news: News) {
        // The recording may be over.
        let _ = self.tell.send(news);
    }
}
