package cutline;

import java.io.BufferedOutputStream;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.nio.channels.Channels;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.FunctionRegistry$;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.catalyst.expressions.NamedArgumentExpression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.expressions.PythonUDF;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.ExpressionUtils;
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
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;

/**
 * Spark SQL expressions over the columns of one table, analysed by Spark and evaluated in this JVM without a job: by
 * the code that Catalyst generates for them, row by row, from Arrow to Arrow. rule.py decides what they mean.
 */
public class Expressions {
    private static final int ARROW_FUNCTION = 250; // PythonEvalType.SQL_SCALAR_ARROW_UDF

    private List analysed;
    private List optimized;
    private List source;
    private List inputs;
    private final List calls = new ArrayList();
    private final List arguments = new ArrayList();

    /** Makes them, since a class that is compiled at run time is reached by an object of it. */
    public static class Maker {
        public Maker() {}

        /**
         * Analyse these items of a SELECT list over columns of this schema (JSON), which may call Python functions (their
         * types by their names); an AnalysisException of Spark's. Spark knows the functions meanwhile alone, since two
         * tables' rules may mean two by one name.
         */
        public synchronized Expressions make(SparkSession session, String schema, List items, Map functions)
                throws Exception {
            for (int i = 0; i < items.size(); i++) {
                refuseQueries(session.sessionState().sqlParser().parseExpression((String) items.get(i)));
            }
            register(session, functions);
            try {
                return analyse(session, (StructType) DataType.fromJson(schema), items);
            } finally {
                Iterator names = functions.keySet().iterator();
                while (names.hasNext()) {
                    session.sessionState().functionRegistry().dropFunction(new FunctionIdentifier((String) names.next()));
                }
            }
        }

        /** An exception, if a Python function can't have this name or this type. */
        public void check(SparkSession session, String name, String type) throws Exception {
            if (FunctionRegistry$.MODULE$.builtin().functionExists(new FunctionIdentifier(name))) {
                throw new IllegalArgumentException("Spark SQL has a function " + name + " of its own");
            }
            session.sessionState().sqlParser().parseDataType(type);
        }

        private static void register(SparkSession session, Map functions) throws Exception {
            Iterator names = functions.keySet().iterator();
            while (names.hasNext()) {
                String name = (String) names.next();
                FunctionIdentifier known = new FunctionIdentifier(name);
                DataType type = session.sessionState().sqlParser().parseDataType((String) functions.get(name));
                session.sessionState()
                        .functionRegistry()
                        .registerFunction(known, new ExpressionInfo("python", name), new Builder(name, type));
            }
        }

        private static Expressions analyse(SparkSession session, StructType schema, List items) throws Exception {
            Expressions found = new Expressions();
            JavaSparkContext context = JavaSparkContext.fromSparkContext(session.sparkContext());
            Dataset rows = session.createDataFrame(context.emptyRDD(), schema);
            QueryExecution query = rows.selectExpr((String[]) items.toArray(new String[0])).queryExecution();
            found.source = CollectionConverters.asJava(rows.queryExecution().analyzed().output());
            found.inputs = found.source;
            found.analysed = listOf(query.analyzed(), found.inputs);
            if (found.analysed == null) {
                return found;
            }
            List results = new ArrayList();
            for (int i = 0; i < found.analysed.size(); i++) {
                results.add(found.withoutCalls((Expression) found.analysed.get(i)));
            }
            if (found.calls.isEmpty()) {
                found.optimized = listOf(query.optimizedPlan(), found.inputs);
            } else {
                found.optimize(session, context, schema, results);
            }
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

    /** Makes the expression of a call of a Python function; it is never evaluated by Spark. */
    public static class Builder extends AbstractFunction1 {
        private final String name;
        private final DataType type;

        Builder(String name, DataType type) {
            this.name = name;
            this.type = type;
        }

        public Object apply(Object arguments) {
            return new PythonUDF(
                    name, null, type, (Seq) arguments, ARROW_FUNCTION, true, NamedExpression$.MODULE$.newExprId());
        }
    }

    private Expressions() {}

    /** The expression with each call of a Python function replaced by an attribute of its results; notes the calls. */
    private Expression withoutCalls(Expression expression) {
        List children = new ArrayList();
        Iterator each = CollectionConverters.asJava(expression.children()).iterator();
        while (each.hasNext()) {
            children.add(withoutCalls((Expression) each.next()));
        }
        Expression made = (Expression) expression.withNewChildren(CollectionConverters.asScala(children).toSeq());
        if (!(made instanceof PythonUDF)) {
            return made;
        }
        for (int i = 0; i < children.size(); i++) {
            if (children.get(i) instanceof NamedArgumentExpression) {
                throw new IllegalArgumentException(((PythonUDF) made).name() + " takes no arguments by name");
            }
        }
        for (int i = 0; i < calls.size(); i++) {
            if (((PythonUDF) arguments.get(i)).semanticEquals(made)) {
                return (Expression) calls.get(i);
            }
        }
        Attribute result = (Attribute) new AttributeReference(
                ((PythonUDF) made).name() + " " + calls.size() + " ", // no column's name ends in a space
                made.dataType(),
                true,
                Metadata.empty(),
                NamedExpression$.MODULE$.newExprId(),
                (Seq) Nil$.MODULE$);
        arguments.add(made);
        calls.add(result);
        return result;
    }

    /** Have Spark optimize results, and then the arguments of calls, over rows that have the calls' results too. */
    private void optimize(SparkSession session, JavaSparkContext context, StructType schema, List results)
            throws Exception {
        for (int i = 0; i < calls.size(); i++) {
            Attribute call = (Attribute) calls.get(i);
            schema = schema.add(call.name(), call.dataType(), true);
        }
        List inner = new ArrayList(results);
        for (int i = 0; i < arguments.size(); i++) {
            Iterator each = CollectionConverters.asJava(((Expression) arguments.get(i)).children()).iterator();
            while (each.hasNext()) {
                inner.add(each.next());
            }
        }
        Dataset rows = session.createDataFrame(context.emptyRDD(), schema);
        List known = new ArrayList(inputs);
        known.addAll(calls);
        List now = CollectionConverters.asJava(rows.queryExecution().analyzed().output());
        List named = new ArrayList();
        for (int i = 0; i < inner.size(); i++) {
            named.add(ExpressionUtils.column(replaced((Expression) inner.get(i), known, now)).as("" + i));
        }
        Dataset query = rows.select(CollectionConverters.asScala(named).toSeq());
        optimized = Maker.listOf(query.queryExecution().optimizedPlan(), now);
        inputs = now;
    }

    /** The expression with each attribute that is one of `known` replaced by that of `now` at the same place. */
    private static Expression replaced(Expression expression, List known, List now) {
        for (int i = 0; expression instanceof Attribute && i < known.size(); i++) {
            if (((Attribute) known.get(i)).exprId().equals(((Attribute) expression).exprId())) {
                return (Expression) now.get(i);
            }
        }
        List children = new ArrayList();
        Iterator each = CollectionConverters.asJava(expression.children()).iterator();
        while (each.hasNext()) {
            children.add(replaced((Expression) each.next(), known, now));
        }
        return (Expression) expression.withNewChildren(CollectionConverters.asScala(children).toSeq());
    }

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
        for (int i = 0; inner instanceof Attribute && i < source.size(); i++) {
            if (((Attribute) source.get(i)).exprId().equals(((Attribute) inner).exprId())) {
                return i;
            }
        }
        return -1;
    }

    /** How many calls of Python functions the results need; a call comes behind those that its arguments need. */
    public int callCount() {
        return calls.size();
    }

    /** The name of the function that a call is of. */
    public String callFunction(int at) {
        return ((PythonUDF) arguments.get(at)).name();
    }

    /** The name of the input which has the results of a call. */
    public String callName(int at) {
        return ((Attribute) calls.get(at)).name();
    }

    /** The type of a call's results, as JSON. */
    public String callType(int at) {
        return ((Attribute) calls.get(at)).dataType().json();
    }

    /** The arguments of a call, to be evaluated together; null if it has none. */
    public Chosen callArguments(int at) {
        int first = analysed.size();
        for (int i = 0; i < at; i++) {
            first += ((Expression) arguments.get(i)).children().size();
        }
        List own = new ArrayList();
        for (int i = 0; i < ((Expression) arguments.get(at)).children().size(); i++) {
            own.add(Integer.valueOf(first + i));
        }
        return own.isEmpty() ? (Chosen) null : choose(own);
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

        /** How many results there are. */
        public int size() {
            return expressions.size();
        }

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
