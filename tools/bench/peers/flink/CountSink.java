import java.util.Set;
import org.apache.flink.configuration.ConfigOption;
import org.apache.flink.streaming.api.functions.sink.SinkFunction;
import org.apache.flink.table.connector.ChangelogMode;
import org.apache.flink.table.connector.sink.DynamicTableSink;
import org.apache.flink.table.connector.sink.SinkFunctionProvider;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.factories.DynamicTableSinkFactory;
import org.apache.flink.types.RowKind;

/** The connector `count`: Flink's blackhole, but each row is counted, before-images of updates apart. */
public final class CountSink implements DynamicTableSinkFactory {
  @Override public String factoryIdentifier() { return "count"; }
  @Override public Set<ConfigOption<?>> requiredOptions() { return Set.of(); }
  @Override public Set<ConfigOption<?>> optionalOptions() { return Set.of(); }
  @Override public DynamicTableSink createDynamicTableSink(Context context) { return new Sink(); }

  private static final class Sink implements DynamicTableSink {
    @Override public ChangelogMode getChangelogMode(ChangelogMode requested) { return requested; }
    @Override public SinkRuntimeProvider getSinkRuntimeProvider(Context context) { return SinkFunctionProvider.of(new Count()); }
    @Override public DynamicTableSink copy() { return new Sink(); }
    @Override public String asSummaryString() { return "count"; }
  }

  private static final class Count implements SinkFunction<RowData> {
    @Override public void invoke(RowData row, Context context) {
      if (row.getRowKind() != RowKind.UPDATE_BEFORE) Marks.hit();
    }
  }
}
