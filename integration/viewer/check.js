#!/usr/bin/env node
// Reads a segment as dial9's viewer does, with the viewer's own code.
//
// In: the folder of the viewer's scripts, segments.
// Out: one line of JSON a segment; exit 1, with what is wrong on stderr, when a
// view that a trace of ours has to fill would be empty, or when the events
// contradict each other.
// Never: a reader of our own; what is counted here is what the viewer parsed.
//
//   node check.js SCRIPTS FILE...
"use strict";

const fs = require("fs");
const path = require("path");
const zlib = require("zlib");

const [scripts, ...files] = process.argv.slice(2);
const load = (name) => require(path.resolve(scripts, name));
const { parseTrace, EVENT_TYPES } = load("trace_parser.js");
const analysis = load("trace_analysis.js");
const { TraceDecoder } = load("decode.js");
const { diagnoseSetup } = load("diagnose_setup.js");

/** Diagnoses that would be about our events, not about the target's set-up. */
const OURS = ["missing-wake-events", "no-task-polls", "no-tokio-unstable"];

const { PollStart, PollEnd, WorkerPark, WorkerUnpark, QueueSample, WakeEvent } = EVENT_TYPES;

/** Every frame has to decode. */
function walk(file) {
  const bytes = fs.readFileSync(file);
  const raw = bytes[0] === 0x1f ? zlib.gunzipSync(bytes) : bytes;
  const decoder = new TraceDecoder(raw);
  if (!decoder.decodeHeader()) throw new Error("no header");
  let frames = 0;
  while (decoder.nextFrame()) frames += 1;
  return frames;
}

/** What the viewer would have to draw. */
function views(trace) {
  const ids = new Set();
  for (const event of trace.events) {
    if ([PollStart, PollEnd, WorkerPark, WorkerUnpark].includes(event.eventType)) {
      ids.add(event.workerId);
    }
  }
  const workers = [...ids].sort((a, b) => a - b);
  const spans = analysis.buildWorkerSpans(
    trace.events, workers, trace.maxTs, trace.blockInPlaceGaps);
  const timeline = analysis.buildActiveTaskTimeline(
    trace.taskSpawnTimes, trace.taskTerminateTimes);
  const sum = (what) => workers.reduce((n, id) => n + spans.workerSpans[id][what].length, 0);
  const delays = analysis.computeSchedulingDelays(spans.workerSpans, workers, spans.wakesByTask);
  return {
    lanes: sum("polls"),
    parks: sum("parks"),
    activeTasks: analysis.activeTaskSeries(trace, timeline).length,
    taskLifetimes:
      [...trace.taskSpawnTimes.keys()].filter((id) => trace.taskTerminateTimes.has(id)).length,
    tidBindings: trace.tidBindings.size,
    clock: trace.clockSyncAnchors.length,
    metadata: trace.segmentMetadata.size,
    schedDelays: delays.length,
  };
}

/** Counts of contradictions: each has to be zero. */
function contradictions(trace) {
  const found = {
    unpairedPolls: 0,
    unpairedParks: 0,
    timeGoesBack: 0,
    negativeQueue: 0,
    pollsOfNoTask: 0,
    polledNotSpawned: 0,
    wokenNotSpawned: 0,
    endsBeforeItsSpawn: 0,
    parksWithoutCpuTime: 0,
    workerIdsAbove63: 0,
    uninstrumented: [...trace.taskInstrumented.values()].filter((is) => !is).length,
    noClockOffset: trace.clockOffsetNs == null ? 1 : 0,
    truncated: trace.truncated ? 1 : 0,
  };
  const workers = new Map();
  const knows = (id) => trace.taskSpawnLocs.has(id);
  for (const event of trace.events) {
    const type = event.eventType;
    if (type === WakeEvent) {
      if (event.wokenTaskId && !knows(event.wokenTaskId)) found.wokenNotSpawned += 1;
      continue;
    }
    if (type === QueueSample) continue;
    const worker = workers.get(event.workerId) ?? { at: -Infinity };
    workers.set(event.workerId, worker);
    if (event.workerId > 63) found.workerIdsAbove63 += 1;
    if (event.timestamp < worker.at) found.timeGoesBack += 1;
    worker.at = event.timestamp;
    if (event.localQueue < 0) found.negativeQueue += 1;
    if (type === PollStart || type === PollEnd) {
      if (worker.poll === type) found.unpairedPolls += 1;
      worker.poll = type;
    }
    if (type === WorkerPark || type === WorkerUnpark) {
      if (worker.park === type) found.unpairedParks += 1;
      worker.park = type;
      worker.cpu = (worker.cpu ?? 0) + event.cpuTime;
    }
    if (type === PollStart) {
      if (!event.taskId) found.pollsOfNoTask += 1;
      else if (!knows(event.taskId)) found.polledNotSpawned += 1;
    }
  }
  for (const { cpu } of workers.values()) {
    if (cpu === 0) found.parksWithoutCpuTime += 1;
  }
  for (const [id, spawned] of trace.taskSpawnTimes) {
    const ended = trace.taskTerminateTimes.get(id);
    if (ended !== undefined && ended < spawned) found.endsBeforeItsSpawn += 1;
  }
  return found;
}

/** The viewer's diagnoses, without the report that it prints of them. */
async function diagnosed(file) {
  const log = console.log;
  console.log = () => {};
  try {
    return (await diagnoseSetup(file)).map((one) => one.check);
  } finally {
    console.log = log;
  }
}

async function check(file) {
  const frames = walk(file);
  const trace = await parseTrace(file);
  const drawn = views(trace);
  const found = contradictions(trace);
  const complaints = (await diagnosed(file)).filter((one) => OURS.includes(one));
  console.log(JSON.stringify({ file, frames, views: drawn, contradictions: found, complaints }));
  return [
    ...Object.entries(drawn).filter(([, n]) => !n).map(([view]) => `nothing to draw: ${view}`),
    ...Object.entries(found).filter(([, n]) => n).map(([what, n]) => `${what}: ${n}`),
    ...complaints.map((one) => `diagnosis: ${one}`),
  ];
}

(async () => {
  for (const file of files) {
    for (const problem of await check(file)) {
      console.error(`${file}: ${problem}`);
      process.exitCode = 1;
    }
  }
})().catch((error) => {
  console.error(error);
  process.exitCode = 2;
});
