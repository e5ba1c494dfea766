import java.io.FileOutputStream;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.logging.Handler;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.regex.Pattern;

/** The window that is measured: from the connector's own log line that it begins, to the last row in the sink. */
final class Marks {
  private static final com.sun.management.OperatingSystemMXBean SYSTEM =
      (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
  private static final AtomicLong COUNT = new AtomicLong();
  private static final CountDownLatch DONE = new CountDownLatch(1);
  private static volatile long begun, begunCpu, ended, endedCpu;
  private static long expected;

  /** Rows to wait for; all that the connector logs goes to a file, and the first line with `pattern` begins the window. */
  static void begin(long rows, String file, String pattern) throws Exception {
    expected = rows;
    Pattern first = Pattern.compile(pattern);
    PrintStream out = new PrintStream(new FileOutputStream(file), true);
    Logger root = Logger.getLogger("");
    for (Handler handler : root.getHandlers()) root.removeHandler(handler);
    root.setLevel(Level.INFO);
    root.addHandler(new Handler() {
      @Override public void publish(LogRecord record) {
        String text = String.valueOf(record.getMessage());
        if (begun == 0 && first.matcher(text).find()) {
          begunCpu = SYSTEM.getProcessCpuTime();
          begun = System.nanoTime();
        }
        out.println(record.getInstant() + " " + record.getLevel() + " " + record.getLoggerName() + " " + text);
        if (record.getThrown() != null) record.getThrown().printStackTrace(out);
      }
      @Override public void flush() {}
      @Override public void close() {}
    });
  }

  /** A row reached the sink. */
  static void hit() {
    if (COUNT.incrementAndGet() == expected) {
      ended = System.nanoTime();
      endedCpu = SYSTEM.getProcessCpuTime();
      DONE.countDown();
    }
  }

  /** Ends the process: the connector failed, for that reason if one is known. Nothing happens after the last row. */
  static void failed(String why, Throwable error) {
    while (error != null && error.getCause() != null) error = error.getCause();
    if (error != null) why += " (" + error + ")";
    if (DONE.getCount() > 0) {
      System.err.println(why + ", after " + COUNT.get() + " of " + expected + " rows");
      Runtime.getRuntime().halt(3);
    }
  }

  /** Waits for the last row, prints the figures as one JSON line and ends the process. */
  static void report() throws Exception {
    if (!DONE.await(Long.getLong("limit", 600), TimeUnit.SECONDS)) failed("time is up", null);
    if (begun == 0) failed("no log line began the window", null);
    long peak = 0;
    for (String line : Files.readAllLines(Path.of("/proc/self/status")))
      if (line.startsWith("VmHWM")) peak = Long.parseLong(line.replaceAll("[^0-9]", "")) / 1024;
    System.out.printf(java.util.Locale.ROOT, "{\"rows\": %d, \"seconds\": %.3f, \"cpu_seconds\": %.3f, \"peak_rss_mib\": %d}%n",
        expected, (ended - begun) / 1e9, (endedCpu - begunCpu) / 1e9, peak);
    System.out.flush();
    Runtime.getRuntime().halt(0);
  }
}
