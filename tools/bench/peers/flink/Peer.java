import java.util.LinkedHashMap;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.CoreOptions;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;

/** Flink CDC's MySQL source into a sink that counts. Arguments: snapshot PORT ROWS FOLDER | backlog PORT ROWS FOLDER FILE OFFSET. */
public final class Peer {
  private static final String COLUMNS =
      "c_customer_sk BIGINT NOT NULL, c_customer_id STRING, c_current_cdemo_sk INT, c_current_hdemo_sk INT,"
      + " c_current_addr_sk INT, c_first_shipto_date_sk INT, c_first_sales_date_sk INT, c_salutation STRING,"
      + " c_first_name STRING, c_last_name STRING, c_preferred_cust_flag STRING, c_birth_day INT, c_birth_month INT,"
      + " c_birth_year INT, c_birth_country STRING, c_login STRING, c_email_address STRING, c_last_review_date_sk INT";

  public static void main(String[] arguments) throws Exception {
    boolean snapshot = arguments[0].equals("snapshot");
    Map<String, String> options = new LinkedHashMap<>();
    options.put("connector", "mysql-cdc");
    options.put("hostname", "127.0.0.1");
    options.put("port", arguments[1]);
    options.put("username", "root");
    options.put("password", "");
    options.put("database-name", "tpcds");
    options.put("table-name", "customer");
    options.put("server-id", "7401-7404");
    options.put("jdbc.properties.queryInterceptors", "BinlogStatus");
    options.put("debezium.poll.interval.ms", "10"); // by default it waits 500 ms after each chunk's part
    if (!snapshot) {
      options.put("scan.startup.mode", "specific-offset");
      options.put("scan.startup.specific-offset.file", arguments[4]);
      options.put("scan.startup.specific-offset.pos", arguments[5]);
    }
    Marks.begin(Long.parseLong(arguments[2]), arguments[3] + "/log",
        snapshot ? "Start splitting table" : "Connected to 127.0.0.1:\\d+ at");
    Configuration configuration = new Configuration();
    configuration.set(CoreOptions.DEFAULT_PARALLELISM, 1);
    StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
    environment.enableCheckpointing(3000);
    StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
    String with = options.entrySet().stream()
        .map(option -> "'" + option.getKey() + "' = '" + option.getValue() + "'").collect(Collectors.joining(", "));
    tables.executeSql("CREATE TABLE source (" + COLUMNS + ", PRIMARY KEY (c_customer_sk) NOT ENFORCED) WITH (" + with + ")");
    tables.executeSql("CREATE TABLE sink (" + COLUMNS + ") WITH ('connector' = 'count')");
    TableResult job = tables.executeSql("INSERT INTO sink SELECT * FROM source");
    Thread waiting = new Thread(() -> {
      try {
        job.await();
        Marks.failed("the job ended", null);
      } catch (Exception error) {
        Marks.failed("the job failed", error);
      }
    });
    waiting.setDaemon(true);
    waiting.start();
    Marks.report();
  }
}
