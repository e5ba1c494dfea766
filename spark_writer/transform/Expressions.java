package cutline;

import java.io.BufferedOutputStream;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.nio.channels.Channels;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Spark SQL expressions over the columns of one table, analysed by Spark and evaluated in this JVM without a job: by
 * the code that Catalyst generates for them, row by row, from Arrow to Arrow. rule.py decides what they mean.
 */
public class Expressions {
    private List analysed;
    private List optimized;
    private List inputs;

    /** Makes them, since a class that is compiled at run time is reached by an object of it. */
    public static class Maker {
        public Maker() {}

        /** Analyse these items of a SELECT list over columns of this schema (JSON); an AnalysisException of Spark's. */
        public Expressions make(SparkSession session, String schema, List items) throws Exception {
            for (int i = 0; i < items.size(); i++) {
                refuseQueries(session.sessionState().sqlParser().parseExpression((String) items.get(i)));
            }
            Expressions found = new Expressions();
            JavaSparkContext context = JavaSparkContext.fromSparkContext(session.sparkContext());
            Dataset rows = session.createDataFrame(context.emptyRDD(), (StructType) DataType.fromJson(schema));
            QueryExecution query = rows.selectExpr((String[]) items.toArray(new String[0])).queryExecution();
            LogicalPlan plan = query.analyzed();
            found.inputs = CollectionConverters.asJava(rows.queryExecution().analyzed().output());
            found.analysed = listOf(plan, found.inputs);
            found.optimized = found.analysed == null ? (List) null : listOf(query.optimizedPlan(), found.inputs);
            return found;
        }

        /** Before the analysis, which opens the files that a query names. */
        private static void refuseQueries(Expression parsed) {
            if (parsed instanceof PlanExpression) {
                throw new IllegalArgumentException("it has a query");
            }
            Iterator children = CollectionConverters.asJava(parsed.children()).iterator();
            while (children.hasNext()) {
                refuseQueries((Expression) children.next());
            }
        }

        private static List listOf(LogicalPlan plan, List inputs) {
            if (plan instanceof Project && ((Project) plan).child().children().isEmpty()) {
                return CollectionConverters.asJava(((Project) plan).projectList());
            }
            return plan.children().isEmpty() && plan.output().size() == inputs.size()
                    ? CollectionConverters.asJava(plan.output())
                    : null;
        }
    }

    private Expressions() {}

    /** Whether each row gives one row by itself: no aggregate, window or generator. */
    public boolean areOfOneRow() {
        return optimized != null;
    }

    /** How many results there are. */
    public int size() {
        return analysed.size();
    }

    /** The name of a result. */
    public String name(int at) {
        return ((NamedExpression) analysed.get(at)).name();
    }

    /** The type of a result, as Spark SQL names it. */
    public String type(int at) {
        return ((Expression) analysed.get(at)).dataType().simpleString();
    }

    /** Which input a result is as it stands, -1 if it is computed. */
    public int input(int at) {
        Object found = analysed.get(at);
        Expression inner = found instanceof Alias ? ((Alias) found).child() : (Expression) found;
        for (int i = 0; inner instanceof Attribute && i < inputs.size(); i++) {
            if (((Attribute) inputs.get(i)).exprId().equals(((Attribute) inner).exprId())) {
                return i;
            }
        }
        return -1;
    }

    /** The names of the functions in a result whose value does not depend on its row alone. */
    public List unsteady(int at) {
        List<String> found = new ArrayList<String>();
        collect((Expression) analysed.get(at), found);
        return found;
    }

    private static void collect(Expression expression, List<String> found) {
        String name = expression.getClass().getSimpleName();
        boolean own = expression.children().isEmpty() || childrenAreSteady(expression);
        if ((!expression.deterministic() && own)
                || name.startsWith("Current")
                || name.equals("AesEncrypt") // says of itself that it is steady, and draws a random vector
                || name.equals("Now")
                || name.equals("LocalTimestamp")
                || expression instanceof PlanExpression) {
            found.add(expression.prettyName());
            return;
        }
        Iterator children = CollectionConverters.asJava(expression.children()).iterator();
        while (children.hasNext()) {
            collect((Expression) children.next(), found);
        }
    }

    private static boolean childrenAreSteady(Expression expression) {
        Iterator children = CollectionConverters.asJava(expression.children()).iterator();
        while (children.hasNext()) {
            if (!((Expression) children.next()).deterministic()) {
                return false;
            }
        }
        return true;
    }

    /** These of the results, to be evaluated together. */
    public Chosen choose(List results) {
        Chosen found = new Chosen();
        StructField[] fields = new StructField[results.size()];
        for (int i = 0; i < fields.length; i++) {
            Expression each = (Expression) optimized.get(((Integer) results.get(i)).intValue());
            found.expressions.add(each);
            fields[i] = new StructField("" + i, each.dataType(), true, Metadata.empty());
        }
        found.made = new StructType(fields);
        for (int i = 0; i < inputs.size(); i++) {
            Attribute input = (Attribute) inputs.get(i);
            for (int j = 0; j < fields.length; j++) {
                if (((Expression) found.expressions.get(j)).references().contains(input)) {
                    found.inputs.add(input);
                    break;
                }
            }
        }
        if (found.inputs.isEmpty()) { // a batch without a column would lose the number of its rows
            found.inputs.add(inputs.get(0));
        }
        return found;
    }

    /** Some of the results, and the code that Catalyst generates for them, which costs more to make than a small batch. */
    public static class Chosen {
        private static final long BATCH_BYTES = 16 << 20;

        private final List expressions = new ArrayList();
        private final List inputs = new ArrayList();
        private final List idle = new ArrayList();
        private StructType made;

        /** The names of the inputs that they need, in the order in which batches have them. */
        public List needed() {
            List<String> names = new ArrayList<String>();
            for (int i = 0; i < inputs.size(); i++) {
                names.add(((Attribute) inputs.get(i)).name());
            }
            return names;
        }

        /** Evaluate batches of the needed inputs, from one file of Arrow's stream format to another. Thread-safe. */
        public void evaluate(String from, String to) throws Exception {
            UnsafeProjection projection = taken();
            BufferAllocator allocator = ArrowUtils.rootAllocator().newChildAllocator("rule", 0, Long.MAX_VALUE);
            try {
                ArrowStreamReader reader = new ArrowStreamReader(new FileInputStream(from), allocator);
                VectorSchemaRoot root =
                        VectorSchemaRoot.create(ArrowUtils.toArrowSchema(made, "UTC", true, false), allocator);
                try {
                    OutputStream out = new BufferedOutputStream(new FileOutputStream(to), 1 << 20);
                    try {
                        write(projection, reader, root, new ArrowStreamWriter(root, null, Channels.newChannel(out)));
                    } finally {
                        out.close();
                    }
                } finally {
                    root.close();
                    reader.close();
                }
            } finally {
                allocator.close();
            }
            synchronized (idle) { // one that failed is not used again
                idle.add(projection);
            }
        }

        private UnsafeProjection taken() {
            synchronized (idle) {
                if (!idle.isEmpty()) {
                    return (UnsafeProjection) idle.remove(idle.size() - 1);
                }
            }
            return UnsafeProjection.create(
                    CollectionConverters.asScala(expressions).toSeq(), CollectionConverters.asScala(inputs).toSeq());
        }

        private static void finish(ArrowWriter rows, ArrowStreamWriter writer) throws Exception {
            rows.finish();
            writer.writeBatch();
            rows.reset();
        }

        private static void write(
                UnsafeProjection projection, ArrowStreamReader reader, VectorSchemaRoot root, ArrowStreamWriter writer)
                throws Exception {
            ArrowWriter rows = ArrowWriter.create(root);
            long bytes = 0;
            writer.start();
            VectorSchemaRoot source = reader.getVectorSchemaRoot();
            ColumnVector[] columns = new ColumnVector[source.getFieldVectors().size()];
            while (reader.loadNextBatch()) {
                for (int i = 0; i < columns.length; i++) {
                    columns[i] = new ArrowColumnVector((FieldVector) source.getFieldVectors().get(i));
                }
                Iterator each = new ColumnarBatch(columns, source.getRowCount()).rowIterator();
                while (each.hasNext()) {
                    UnsafeRow row = projection.apply((InternalRow) each.next());
                    rows.write(row);
                    bytes += row.getSizeInBytes();
                    if (bytes > BATCH_BYTES) {
                        finish(rows, writer);
                        bytes = 0;
                    }
                }
            }
            finish(rows, writer);
            writer.end();
        }
    }
}
