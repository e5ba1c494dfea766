import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.io.FileOutputStream;
import java.io.ObjectOutputStream;
import java.util.HashMap;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.connect.source.SourceRecord;

/** Debezium's embedded engine into a sink that counts. Arguments: snapshot PORT ROWS FOLDER | backlog PORT ROWS FOLDER FILE OFFSET GTIDS. */
public final class Peer {
  public static void main(String[] arguments) throws Exception {
    boolean snapshot = arguments[0].equals("snapshot");
    String folder = arguments[3];
    Properties settings = new Properties();
    settings.put("name", "bench");
    settings.put("connector.class", "io.debezium.connector.mysql.MySqlConnector");
    settings.put("topic.prefix", "b");
    settings.put("database.hostname", "127.0.0.1");
    settings.put("database.port", arguments[1]);
    settings.put("database.user", "root");
    settings.put("database.password", "");
    settings.put("database.server.id", "7301");
    settings.put("database.ssl.mode", "disabled"); // its binlog reader is slower over TLS
    settings.put("database.include.list", "tpcds");
    settings.put("table.include.list", "tpcds.customer");
    settings.put("offset.storage", "org.apache.kafka.connect.storage.FileOffsetBackingStore");
    settings.put("offset.storage.file.filename", folder + "/offsets.dat");
    settings.put("offset.flush.interval.ms", "60000");
    settings.put("schema.history.internal", "io.debezium.storage.file.history.FileSchemaHistory");
    settings.put("schema.history.internal.file.filename", folder + "/history.dat");
    settings.put("snapshot.locking.mode", "none");
    settings.put("snapshot.mode", snapshot ? "initial_only" : "recovery");
    if (!snapshot) writeOffset(folder + "/offsets.dat", arguments[4], arguments[5], arguments[6]);
    Marks.begin(Long.parseLong(arguments[2]), folder + "/log",
        snapshot ? "Snapshot step 7 - Snapshotting data" : "Connected to 127.0.0.1:\\d+ at");
    DebeziumEngine<?> engine = DebeziumEngine.create(ChangeEventFormat.of(Connect.class))
        .using(settings)
        .using((DebeziumEngine.CompletionCallback) (success, text, error) -> Marks.failed("the engine ended: " + text, error))
        .notifying((List<RecordChangeEvent<SourceRecord>> records, DebeziumEngine.RecordCommitter<RecordChangeEvent<SourceRecord>> committer) -> {
          for (RecordChangeEvent<SourceRecord> each : records) {
            SourceRecord record = each.record();
            if (record != null && record.value() != null && "b.tpcds.customer".equals(record.topic())) Marks.hit();
            committer.markProcessed(each);
          }
          committer.markBatchFinished();
        })
        .build();
    Thread thread = new Thread((Runnable) engine);
    thread.setDaemon(true);
    thread.start();
    Marks.report();
  }

  /** The offset store of a connector that stopped there; with GTIDs it wants their set too. */
  private static void writeOffset(String path, String file, String offset, String gtids) throws Exception {
    String place = "{\"ts_sec\":1,\"file\":\"" + file + "\",\"pos\":" + offset + ",\"gtids\":\"" + gtids + "\"}";
    HashMap<byte[], byte[]> offsets = new HashMap<>();
    offsets.put("[\"bench\",{\"server\":\"b\"}]".getBytes("UTF-8"), place.getBytes("UTF-8"));
    try (ObjectOutputStream out = new ObjectOutputStream(new FileOutputStream(path))) {
      out.writeObject(offsets);
    }
  }
}
