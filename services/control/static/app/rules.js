// The rules of common/commands/rules.py, written by that file's test.
export const RULES = {
 "pause": {
  "command": "pause",
  "role": "operator",
  "taken": "alone",
  "states": {
   "paused": "the pipeline is paused already: there is nothing to do",
   "stopped": "the pipeline is stopped: start it first",
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {}
 },
 "resume": {
  "command": "resume",
  "role": "operator",
  "taken": "alone",
  "states": {
   "running": "the pipeline is running, not paused: there is nothing to do",
   "ended": "the pipeline has ended at its stop: make another pipeline",
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {}
 },
 "stop": {
  "command": "stop",
  "role": "operator",
  "taken": "alone",
  "states": {
   "stopped": "the pipeline is stopped already: there is nothing to do",
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {}
 },
 "start": {
  "command": "start",
  "role": "operator",
  "taken": "alone",
  "states": {
   "running": "the pipeline is running already: there is nothing to do",
   "paused": "the pipeline is paused, not stopped: resume it",
   "ended": "the pipeline has ended at its stop: make another pipeline",
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {}
 },
 "restore": {
  "command": "restore",
  "role": "operator",
  "taken": "alone",
  "states": {
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {}
 },
 "read_again": {
  "command": "read_again",
  "role": "operator",
  "taken": "alone",
  "states": {
   "ended": "the pipeline has ended at its stop: make another pipeline",
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {}
 },
 "delete": {
  "command": "delete",
  "role": "admin",
  "taken": "alone",
  "states": {
   "deleting": "the pipeline is being deleted already: wait until it is gone"
  },
  "phases": {}
 },
 "checkpoint": {
  "command": "checkpoint",
  "role": "operator",
  "taken": "checkpoint",
  "states": {
   "paused": "the pipeline is paused: resume it first",
   "stopped": "the pipeline is stopped: start it first",
   "halted": "the pipeline is halted: remove the cause and resume it, or read every table again",
   "ended": "the pipeline has ended at its stop: make another pipeline",
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {}
 },
 "savepoint": {
  "command": "savepoint",
  "role": "operator",
  "taken": "checkpoint",
  "states": {
   "paused": "the pipeline is paused: resume it first",
   "stopped": "the pipeline is stopped: start it first",
   "halted": "the pipeline is halted: remove the cause and resume it, or read every table again",
   "ended": "the pipeline has ended at its stop: make another pipeline",
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {}
 },
 "delete_savepoint": {
  "command": "delete_savepoint",
  "role": "operator",
  "taken": "alone",
  "states": {
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {}
 },
 "cancel_command": {
  "command": "cancel_command",
  "role": "operator",
  "taken": "alone",
  "states": {
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {}
 },
 "limits": {
  "command": "limits",
  "role": "operator",
  "taken": "alone",
  "states": {
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {}
 },
 "define": {
  "command": "define",
  "role": "admin",
  "taken": "alone",
  "states": {
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {}
 },
 "restore_version": {
  "command": "define",
  "role": "admin",
  "taken": "alone",
  "states": {
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {}
 },
 "add_table": {
  "command": "define",
  "role": "operator",
  "taken": "alone",
  "states": {
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {}
 },
 "remove_table": {
  "command": "define",
  "role": "operator",
  "taken": "alone",
  "states": {
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {}
 },
 "cancel_table": {
  "command": "cancel_table",
  "role": "operator",
  "taken": "alone",
  "states": {
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {
   "live": "{table} is live: a live table can be removed instead",
   "paused": "{table} is paused: a live table can be removed instead",
   "quarantined": "{table} is quarantined: a live table can be removed instead",
   "dropped": "{table} is dropped: a live table can be removed instead"
  }
 },
 "pause_table": {
  "command": "pause_table",
  "role": "operator",
  "taken": "machine",
  "states": {
   "paused": "the pipeline is paused: resume it first",
   "stopped": "the pipeline is stopped: start it first",
   "halted": "the pipeline is halted: remove the cause and resume it, or read every table again",
   "ended": "the pipeline has ended at its stop: make another pipeline",
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {
   "paused": "{table} is paused: there is nothing to pause",
   "quarantined": "{table} is quarantined: there is nothing to pause",
   "dropped": "{table} is dropped: there is nothing to pause"
  }
 },
 "resume_table": {
  "command": "resume_table",
  "role": "operator",
  "taken": "machine",
  "states": {
   "paused": "the pipeline is paused: resume it first",
   "stopped": "the pipeline is stopped: start it first",
   "halted": "the pipeline is halted: remove the cause and resume it, or read every table again",
   "ended": "the pipeline has ended at its stop: make another pipeline",
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {
   "waiting": "{table} is not paused: there is nothing to resume",
   "snapshot": "{table} is not paused: there is nothing to resume",
   "catch-up": "{table} is not paused: there is nothing to resume",
   "live": "{table} is not paused: there is nothing to resume",
   "quarantined": "{table} is not paused: there is nothing to resume",
   "dropped": "{table} is not paused: there is nothing to resume"
  }
 },
 "read_table_again": {
  "command": "read_table_again",
  "role": "operator",
  "taken": "machine",
  "states": {
   "paused": "the pipeline is paused: resume it first",
   "stopped": "the pipeline is stopped: start it first",
   "halted": "the pipeline is halted: remove the cause and resume it, or read every table again",
   "ended": "the pipeline has ended at its stop: make another pipeline",
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {
   "waiting": "{table} is waiting: resume a paused table first; a waiting one is read anyway, and a dropped one can't be",
   "paused": "{table} is paused: resume a paused table first; a waiting one is read anyway, and a dropped one can't be",
   "dropped": "{table} is dropped: resume a paused table first; a waiting one is read anyway, and a dropped one can't be"
  }
 },
 "retry_table": {
  "command": "retry_table",
  "role": "operator",
  "taken": "machine",
  "states": {
   "paused": "the pipeline is paused: resume it first",
   "stopped": "the pipeline is stopped: start it first",
   "halted": "the pipeline is halted: remove the cause and resume it, or read every table again",
   "ended": "the pipeline has ended at its stop: make another pipeline",
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {
   "waiting": "{table} is waiting, not quarantined: there is nothing to retry",
   "snapshot": "{table} is snapshot, not quarantined: there is nothing to retry",
   "catch-up": "{table} is catch-up, not quarantined: there is nothing to retry",
   "live": "{table} is live, not quarantined: there is nothing to retry",
   "paused": "{table} is paused, not quarantined: there is nothing to retry",
   "dropped": "{table} is dropped, not quarantined: there is nothing to retry"
  }
 },
 "forget_table": {
  "command": "forget_table",
  "role": "operator",
  "taken": "machine",
  "states": {
   "paused": "the pipeline is paused: resume it first",
   "stopped": "the pipeline is stopped: start it first",
   "halted": "the pipeline is halted: remove the cause and resume it, or read every table again",
   "ended": "the pipeline has ended at its stop: make another pipeline",
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {
   "waiting": "{table} is waiting, not dropped: only a table that was dropped at the source is forgotten; a captured one can be removed",
   "snapshot": "{table} is snapshot, not dropped: only a table that was dropped at the source is forgotten; a captured one can be removed",
   "catch-up": "{table} is catch-up, not dropped: only a table that was dropped at the source is forgotten; a captured one can be removed",
   "live": "{table} is live, not dropped: only a table that was dropped at the source is forgotten; a captured one can be removed",
   "paused": "{table} is paused, not dropped: only a table that was dropped at the source is forgotten; a captured one can be removed",
   "quarantined": "{table} is quarantined, not dropped: only a table that was dropped at the source is forgotten; a captured one can be removed"
  }
 },
 "lake": {
  "command": "lake",
  "role": "operator",
  "taken": "alone",
  "states": {
   "deleting": "the pipeline is being deleted: wait until it is gone, or use another name"
  },
  "phases": {
   "waiting": "{table} is waiting, not quarantined: no commit of others awaits a choice; there is nothing to do",
   "snapshot": "{table} is snapshot, not quarantined: no commit of others awaits a choice; there is nothing to do",
   "catch-up": "{table} is catch-up, not quarantined: no commit of others awaits a choice; there is nothing to do",
   "live": "{table} is live, not quarantined: no commit of others awaits a choice; there is nothing to do",
   "paused": "{table} is paused, not quarantined: no commit of others awaits a choice; there is nothing to do",
   "dropped": "{table} is dropped, not quarantined: no commit of others awaits a choice; there is nothing to do"
  }
 }
};
