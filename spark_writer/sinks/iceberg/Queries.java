package cutline;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.spark.sql.catalyst.analysis.CTESubstitution;
import org.apache.spark.sql.catalyst.analysis.PlanWithUnresolvedIdentifier;
import org.apache.spark.sql.catalyst.analysis.RelationTimeTravel;
import org.apache.spark.sql.catalyst.analysis.ResolvedInlineTable;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.plans.logical.CTERelationRef;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OneRowRelation;
import org.apache.spark.sql.catalyst.plans.logical.Range;
import org.apache.spark.sql.catalyst.plans.logical.Sample;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.UnionLoopRef;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.SparkSqlParser;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import scala.Function1;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * Queries of derived tables as Spark parses them: the tables that they name, and the same queries over given rows in
 * their places. deriving.py decides what they mean.
 */
public class Queries {
    private LogicalPlan parsed;
    private boolean travels;
    private final List named = new ArrayList();
    private final TreeSet indirect = new TreeSet();

    /** Makes them, since a class that is compiled at run time is reached by an object of it. */
    public static class Maker {
        public Maker() {}

        /** Parse a query; a ParseException of Spark's. */
        public Queries parse(String sql) throws Exception {
            Queries found = new Queries();
            // Spark's own parser: that of the session, Iceberg's, takes any statement for a query, also a DROP TABLE.
            LogicalPlan query = new SparkSqlParser().parseQuery(sql);
            // So that a name of WITH is not taken for a table, and what it stands for is looked through too.
            found.parsed = CTESubstitution.apply(query);
            found.lookThrough(found.parsed);
            return found;
        }

        /** The names of functions in an analysed query whose value does not depend on its tables alone. */
        public List unsteady(LogicalPlan analysed) {
            TreeSet<String> found = new TreeSet<String>();
            collect(analysed, found);
            return new ArrayList<String>(found);
        }

        /**
         * What an analysed query reads that is neither a table of `rows` (Dataset, by name) nor made by the query
         * itself, by Spark's names. Asked of what Spark made of the query, so that no way to name a table is missed.
         */
        public List beyond(LogicalPlan analysed, Map rows) {
            Set tables = Collections.newSetFromMap(new IdentityHashMap());
            Iterator each = rows.values().iterator();
            while (each.hasNext()) {
                leaves(((Dataset) each.next()).queryExecution().analyzed(), tables, null);
            }
            TreeSet found = new TreeSet();
            leaves(analysed, tables, found);
            return new ArrayList(found);
        }
    }

    private Queries() {}

    /** Each name of a table, by its parts. */
    public List named() {
        return named;
    }

    /** Whether the query names a version of a table. */
    public boolean travels() {
        return travels;
    }

    /** The clauses by which the query names tables, or versions of them, where no name is seen. */
    public List indirect() {
        return new ArrayList(indirect);
    }

    /** The query over these rows (Dataset), by the parts of the names in their places; an AnalysisException of Spark's. */
    public Dataset over(SparkSession session, Map rows) {
        LogicalPlan plan = (LogicalPlan) parsed.transformUpWithSubqueries(new Placed(rows));
        return Dataset.ofRows(session, plan);
    }

    private void lookThrough(LogicalPlan plan) {
        if (plan instanceof UnresolvedRelation) {
            UnresolvedRelation relation = (UnresolvedRelation) plan;
            named.add(parts(relation));
            if (!relation.options().isEmpty() || relation.isStreaming()) {
                indirect.add("options of a table");
            }
        }
        if (plan instanceof PlanWithUnresolvedIdentifier) {
            indirect.add("IDENTIFIER");
        }
        travels |= plan instanceof RelationTimeTravel;
        Iterator expressions = CollectionConverters.asJava(plan.expressions()).iterator();
        while (expressions.hasNext()) {
            lookThrough((Expression) expressions.next());
        }
        Iterator children = CollectionConverters.asJava(plan.children()).iterator();
        while (children.hasNext()) {
            lookThrough((LogicalPlan) children.next());
        }
    }

    private void lookThrough(Expression expression) {
        if (expression instanceof PlanExpression) {
            lookThrough((LogicalPlan) ((PlanExpression) expression).plan());
        }
        Iterator children = CollectionConverters.asJava(expression.children()).iterator();
        while (children.hasNext()) {
            lookThrough((Expression) children.next());
        }
    }

    private static List parts(UnresolvedRelation relation) {
        return CollectionConverters.asJava(relation.multipartIdentifier());
    }

    /** Put the tables that a plan reads into `tables`; or if `found` is given, other leaves than those into `found`. */
    private static void leaves(LogicalPlan plan, Set tables, TreeSet found) {
        Iterator expressions = CollectionConverters.asJava(plan.expressions()).iterator();
        while (expressions.hasNext()) {
            leaves((Expression) expressions.next(), tables, found);
        }
        Iterator children = CollectionConverters.asJava(plan.children()).iterator();
        boolean leaf = !children.hasNext();
        while (children.hasNext()) {
            leaves((LogicalPlan) children.next(), tables, found);
        }
        if (!leaf) {
            return;
        }
        if (found == null) {
            if (plan instanceof DataSourceV2Relation) {
                tables.add(((DataSourceV2Relation) plan).table());
            }
        } else if (plan instanceof DataSourceV2Relation
                ? !tables.contains(((DataSourceV2Relation) plan).table())
                : !(plan instanceof OneRowRelation
                        || plan instanceof LocalRelation
                        || plan instanceof ResolvedInlineTable
                        || plan instanceof Range
                        || plan instanceof CTERelationRef
                        || plan instanceof UnionLoopRef)) {
            found.add(plan.nodeName());
        }
    }

    private static void leaves(Expression expression, Set tables, TreeSet found) {
        if (expression instanceof PlanExpression) {
            leaves((LogicalPlan) ((PlanExpression) expression).plan(), tables, found);
        }
        Iterator children = CollectionConverters.asJava(expression.children()).iterator();
        while (children.hasNext()) {
            leaves((Expression) children.next(), tables, found);
        }
    }

    private static void collect(LogicalPlan plan, TreeSet<String> found) {
        if (plan instanceof Sample) {
            found.add("tablesample");
        }
        Iterator expressions = CollectionConverters.asJava(plan.expressions()).iterator();
        while (expressions.hasNext()) {
            collect((Expression) expressions.next(), found);
        }
        Iterator children = CollectionConverters.asJava(plan.children()).iterator();
        while (children.hasNext()) {
            collect((LogicalPlan) children.next(), found);
        }
    }

    private static void collect(Expression expression, TreeSet<String> found) {
        String name = expression.getClass().getSimpleName();
        boolean own = true;
        Iterator children = CollectionConverters.asJava(expression.children()).iterator();
        while (children.hasNext()) {
            Expression child = (Expression) children.next();
            own &= child.deterministic();
            collect(child, found);
        }
        if (expression instanceof PlanExpression) {
            collect((LogicalPlan) ((PlanExpression) expression).plan(), found);
            return;
        }
        if (expression instanceof Attribute && ((Attribute) expression).metadata().contains("__metadata_col")) {
            found.add("Iceberg's own columns, as _file"); // all of them, once one is named
        }
        if ((!expression.deterministic() && own)
                || (name.startsWith("Current") && !name.equals("CurrentRow$"))
                || name.equals("AesEncrypt") // says of itself that it is steady, and draws a random vector
                || name.equals("Now")
                || name.equals("LocalTimestamp")) {
            found.add(expression.prettyName());
        }
    }

    /** Puts rows in the places of tables' names, under which columns can then be named. */
    public static class Placed extends AbstractPartialFunction {
        private final Map rows;

        public Placed(Map rows) {
            this.rows = rows;
        }

        public boolean isDefinedAt(Object plan) {
            return plan instanceof UnresolvedRelation;
        }

        public Object applyOrElse(Object plan, Function1 otherwise) {
            if (!(plan instanceof UnresolvedRelation)) {
                return otherwise.apply(plan);
            }
            List parts = parts((UnresolvedRelation) plan);
            Dataset found = (Dataset) rows.get(String.join(".", (String[]) parts.toArray(new String[0])));
            List qualifier = Arrays.asList(new Object[] {parts.get(0)});
            return new SubqueryAlias(
                    new org.apache.spark.sql.catalyst.AliasIdentifier(
                            (String) parts.get(1), CollectionConverters.asScala(qualifier).toSeq()),
                    found.queryExecution().analyzed());
        }
    }
}
