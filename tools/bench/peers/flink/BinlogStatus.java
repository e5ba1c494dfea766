import com.mysql.cj.MysqlConnection;
import com.mysql.cj.Query;
import com.mysql.cj.interceptors.QueryInterceptor;
import com.mysql.cj.jdbc.JdbcConnection;
import com.mysql.cj.log.Log;
import com.mysql.cj.protocol.Resultset;
import com.mysql.cj.protocol.ServerSession;
import java.sql.SQLException;
import java.util.Properties;
import java.util.function.Supplier;

/** Answers Flink CDC's SHOW MASTER STATUS, which MySQL has no more since 8.4, by SHOW BINARY LOG STATUS. */
public final class BinlogStatus implements QueryInterceptor {
  private JdbcConnection connection;

  @Override public QueryInterceptor init(MysqlConnection connection, Properties properties, Log log) {
    this.connection = (JdbcConnection) connection;
    return this;
  }

  @SuppressWarnings("unchecked")
  @Override public <T extends Resultset> T preProcess(Supplier<String> sql, Query query) {
    String text = sql == null ? null : sql.get();
    if (text == null || !text.trim().equalsIgnoreCase("SHOW MASTER STATUS")) return null;
    try {
      return (T) connection.createStatement().executeQuery("SHOW BINARY LOG STATUS");
    } catch (SQLException error) {
      throw new IllegalStateException(error);
    }
  }

  @Override public boolean executeTopLevelOnly() { return true; }
  @Override public void destroy() {}

  @Override public <T extends Resultset> T postProcess(Supplier<String> sql, Query query, T original, ServerSession session) {
    return null;
  }
}
