package lakewarden;

import java.io.FileNotFoundException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.paimon.CoreOptions;
import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.serializer.InternalRowSerializer;
import org.apache.paimon.format.FileFormat;
import org.apache.paimon.format.SimpleColStats;
import org.apache.paimon.format.SimpleStatsExtractor;
import org.apache.paimon.format.parquet.ParquetSchemaConverter;
import org.apache.paimon.format.parquet.ParquetUtil;
import org.apache.paimon.fs.Path;
import org.apache.paimon.io.CompactIncrement;
import org.apache.paimon.io.DataFileMeta;
import org.apache.paimon.io.DataIncrement;
import org.apache.paimon.manifest.FileSource;
import org.apache.paimon.manifest.ManifestEntry;
import org.apache.paimon.options.Options;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.paimon.shade.org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.paimon.shade.org.apache.parquet.schema.GroupType;
import org.apache.paimon.shade.org.apache.parquet.schema.LogicalTypeAnnotation;
import org.apache.paimon.shade.org.apache.parquet.schema.PrimitiveType;
import org.apache.paimon.shade.org.apache.parquet.schema.Type;
import org.apache.paimon.statistics.SimpleColStatsCollector;
import org.apache.paimon.stats.SimpleStats;
import org.apache.paimon.stats.SimpleStatsConverter;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.CommitMessageImpl;
import org.apache.paimon.types.DataField;
import org.apache.paimon.types.DataTypeRoot;
import org.apache.paimon.types.RowType;
import org.apache.paimon.utils.Pair;
import org.apache.paimon.utils.StatsCollectorFactories;

/**
 * Adopts files that other tools wrote into an append table without buckets: checks their footers, then appends
 * them. Compiled by Janino like PaimonBridge; the same rules apply.
 */
public class PaimonAdoption {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final int THREADS = 8;

  /** Why a file cannot be adopted, in words for the user. */
  public static final class Unfit extends Exception {
    Unfit(String reason) {
      super(reason);
    }
  }

  /** A file that fits, with the fields of its entry. `place` is the path where Paimon itself would look for it. */
  public static final class Fitting {
    final String path;
    final String name;
    final long bytes;
    final long rows;
    final long schema;
    final BinaryRow partition;
    final SimpleStats stats;
    final List statsColumns;
    final String place;

    Fitting(String path, long bytes, long rows, long schema, BinaryRow partition, Pair stats, String place) {
      this.path = path;
      this.name = new Path(path).getName();
      this.bytes = bytes;
      this.rows = rows;
      this.schema = schema;
      this.partition = partition;
      this.stats = (SimpleStats) stats.getRight();
      this.statsColumns = (List) stats.getLeft();
      this.place = place;
    }
  }

  /** Files to be adopted into a table, and the result of their check: {"files": [...], "unfit": [...]}. */
  public static final class Candidates {
    final List fitting = new ArrayList();
    final List described = new ArrayList();
    final List unfit = new ArrayList();

    public String told() throws Exception {
      Map answer = new HashMap();
      answer.put("files", described);
      answer.put("unfit", unfit);
      return JSON.writeValueAsString(answer);
    }
  }

  // ---------------------------------------------------------------- checking them

  /** Describes every file from its footer, or says why that is impossible. Changes nothing. */
  public Candidates candidates(final FileStoreTable table, String pathsJson) throws Exception {
    List paths = (List) JSON.readValue(pathsJson, List.class);
    ExecutorService pool = Executors.newFixedThreadPool(THREADS);
    Candidates found = new Candidates();
    try {
      List pending = new ArrayList();
      for (Iterator each = paths.iterator(); each.hasNext(); ) {
        final String path = (String) each.next();
        pending.add(pool.submit(new Callable() {
          public Object call() throws Exception {
            return fitting(table, path);
          }
        }));
      }
      for (int i = 0; i < pending.size(); i++) {
        try {
          Fitting file = (Fitting) ((Future) pending.get(i)).get();
          found.fitting.add(file);
          found.described.add(describe(table, file));
        } catch (ExecutionException e) {
          if (!(e.getCause() instanceof Unfit)) {
            throw e;
          }
          Map row = new HashMap();
          row.put("path", paths.get(i));
          row.put("reason", e.getCause().getMessage());
          found.unfit.add(row);
        }
      }
    } finally {
      pool.shutdownNow();
    }
    return found;
  }

  private static Map describe(FileStoreTable table, Fitting file) {
    Map row = new HashMap();
    row.put("path", file.path);
    row.put("place", file.place);
    row.put("rows", Long.valueOf(file.rows));
    row.put("bytes", Long.valueOf(file.bytes));
    String partition = table.store().pathFactory().getPartitionString(file.partition);
    row.put("partition", partition.endsWith("/") ? partition.substring(0, partition.length() - 1) : partition);
    return row;
  }

  private static Fitting fitting(FileStoreTable table, String path) throws Exception {
    if (!path.endsWith(".parquet")) {
      throw new Unfit("its name does not end in .parquet, by which Paimon knows how to read a file");
    }
    long bytes;
    try {
      bytes = table.fileIO().getFileStatus(new Path(path)).getLen();
    } catch (FileNotFoundException e) {
      throw new Unfit("it does not exist");
    }
    RowType type = table.rowType();
    GroupType written = schema(table, path, bytes);
    checkSchema(ParquetSchemaConverter.convertToParquetMessageType(type), written);
    Pair exact = stats(table, path, bytes, "full");
    long rows = ((SimpleStatsExtractor.FileInfo) exact.getRight()).getRowCount();
    if (rows == 0) {
      throw new Unfit("it has no rows");
    }
    SimpleColStats[] columns = (SimpleColStats[]) exact.getLeft();
    checkNulls(type, columns, written);
    BinaryRow partition = partition(table, columns, rows);
    SimpleColStats[] kept = (SimpleColStats[]) stats(table, path, bytes, table.coreOptions().statsMode()).getLeft();
    forgetFloatBounds(type, kept);
    Pair stats = new SimpleStatsConverter(type, table.coreOptions().statsDenseStore()).toBinary(kept);
    String place =
        new Path(table.store().pathFactory().bucketPath(partition, 0), new Path(path).getName()).toString();
    return new Fitting(path, bytes, rows, table.schema().id(), partition, stats, place);
  }

  private static GroupType schema(FileStoreTable table, String path, long bytes) throws Exception {
    ParquetFileReader reader = null;
    try {
      reader = ParquetUtil.getParquetReader(table.fileIO(), new Path(path), bytes, new Options());
      return reader.getFooter().getFileMetaData().getSchema();
    } catch (Exception e) {
      throw new Unfit("it cannot be read as Parquet: " + firstLine(e));
    } finally {
      if (reader != null) {
        reader.close();
      }
    }
  }

  private static String firstLine(Throwable e) {
    String message = e.getMessage() == null ? e.getClass().getSimpleName() : e.getMessage();
    int end = message.indexOf('\n');
    return end < 0 ? message : message.substring(0, end);
  }

  private static Pair stats(FileStoreTable table, String path, long bytes, String mode) throws Exception {
    CoreOptions options = table.coreOptions();
    RowType type = table.rowType();
    SimpleColStatsCollector.Factory[] factories =
        mode.equals("full")
            ? StatsCollectorFactories.createStatsFactories("full", new CoreOptions(new Options()), type.getFieldNames())
            : StatsCollectorFactories.createStatsFactories(mode, options, type.getFieldNames());
    SimpleStatsExtractor extractor =
        (SimpleStatsExtractor)
            FileFormat.fromIdentifier("parquet", options.toConfiguration())
                .createStatsExtractor(type, factories)
                .get();
    return extractor.extractWithFileInfo(table.fileIO(), new Path(path), bytes);
  }

  // ---------------------------------------------------------------- do they fit?

  /**
   * Paimon finds columns by name and reads them in its own storage form: a column stored in another form is
   * read as garbage or not at all. A column that the table does not have could later become another column.
   */
  private static void checkSchema(GroupType wanted, GroupType written) throws Unfit {
    boolean ids = false;
    for (int i = 0; i < written.getFieldCount(); i++) {
      Type column = written.getType(i);
      ids |= column.getId() != null;
      if (!wanted.containsField(column.getName())) {
        throw new Unfit("it has a column " + column.getName() + ", which the table does not have");
      }
    }
    for (int i = 0; i < wanted.getFieldCount(); i++) {
      Type column = wanted.getType(i);
      if (written.containsField(column.getName())) {
        checkColumn(column, written.getType(column.getName()), ids, column.getName(), true);
      } else if (column.isRepetition(Type.Repetition.REQUIRED)) {
        throw new Unfit("it lacks the column " + column.getName() + ", which must not be null");
      }
    }
  }

  private static void checkColumn(Type wanted, Type written, boolean ids, String name, boolean top) throws Unfit {
    // Compaction matches columns by id if a file has ids.
    if (ids && (wanted.getId() == null ? written.getId() != null : !wanted.getId().equals(written.getId()))) {
      throw new Unfit("column " + name + " has field id " + written.getId() + ", in the table " + wanted.getId());
    }
    if (wanted.isPrimitive() != written.isPrimitive() || !(top || wanted.getRepetition() == written.getRepetition())) {
      throw unlike(wanted, written, name);
    }
    if (wanted.isPrimitive()) {
      PrimitiveType one = wanted.asPrimitiveType();
      PrimitiveType other = written.asPrimitiveType();
      boolean alike = one.getPrimitiveTypeName() == other.getPrimitiveTypeName();
      alike &= one.getTypeLength() == other.getTypeLength() && meaning(one).equals(meaning(other));
      if (!alike || written.isRepetition(Type.Repetition.REPEATED)) {
        throw unlike(wanted, written, name);
      }
      return;
    }
    GroupType one = wanted.asGroupType();
    GroupType other = written.asGroupType();
    if (one.getFieldCount() != other.getFieldCount() || !meaning(one).equals(meaning(other))) {
      throw unlike(wanted, written, name);
    }
    for (int i = 0; i < one.getFieldCount(); i++) {
      String child = one.getType(i).getName();
      if (!other.containsField(child)) {
        throw unlike(wanted, written, name);
      }
      checkColumn(one.getType(i), other.getType(child), ids, name + "." + child, false);
    }
  }

  /** The meaning of a column's bytes; integers of the usual widths need no annotation. */
  private static String meaning(Type type) {
    LogicalTypeAnnotation annotation = type.getLogicalTypeAnnotation();
    String found = annotation == null ? "" : annotation.toString();
    boolean plain = found.equals("INTEGER(32,true)") || found.equals("INTEGER(64,true)");
    return plain ? "" : found;
  }

  private static Unfit unlike(Type wanted, Type written, String name) {
    String stored = written.toString().replaceAll("\\s+", " ");
    return new Unfit("column " + name + " is stored as " + stored + ", by Paimon as " + wanted.toString().replaceAll("\\s+", " "));
  }

  private static void checkNulls(RowType type, SimpleColStats[] columns, GroupType written) throws Unfit {
    for (int i = 0; i < columns.length; i++) {
      DataField field = (DataField) type.getFields().get(i);
      if (field.type().isNullable() || written.getType(field.name()).isRepetition(Type.Repetition.REQUIRED)) {
        continue;
      }
      Long nulls = columns[i].nullCount();
      if (nulls == null || nulls.longValue() != 0L) {
        String many = nulls == null || nulls.longValue() < 0L ? "may have" : "has " + nulls;
        throw new Unfit("column " + field.name() + " must not be null, and " + many + " nulls");
      }
    }
  }

  /** The one partition of all rows: its columns are in the file, with equal least and greatest value. */
  private static BinaryRow partition(FileStoreTable table, SimpleColStats[] columns, long rows) throws Exception {
    RowType type = table.store().partitionType();
    Object[] values = new Object[type.getFieldCount()];
    for (int i = 0; i < values.length; i++) {
      String name = (String) type.getFieldNames().get(i);
      SimpleColStats stats = columns[table.rowType().getFieldIndex(name)];
      Long nulls = stats.nullCount();
      if (nulls == null || nulls.longValue() < 0L) {
        throw new Unfit("it does not have, or does not count the nulls of, the partition column " + name);
      }
      if (nulls.longValue() == rows) {
        continue;
      }
      if (stats.min() == null || stats.max() == null || isFloat((DataField) type.getFields().get(i))) {
        throw new Unfit("its footer does not state the range of the partition column " + name);
      }
      if (nulls.longValue() > 0L || !stats.min().equals(stats.max())) {
        String range = nulls.longValue() > 0L ? "has both nulls and values" : "goes from " + stats.min() + " to " + stats.max();
        throw new Unfit("it spans partitions: column " + name + " " + range);
      }
      values[i] = stats.min();
    }
    return new InternalRowSerializer(type).toBinaryRow(GenericRow.of(values)).copy();
  }

  /** Footers do not count NaNs, and Paimon treats NaN as the largest number: so floats state no bounds. */
  private static void forgetFloatBounds(RowType type, SimpleColStats[] columns) {
    for (int i = 0; i < columns.length; i++) {
      if (isFloat((DataField) type.getFields().get(i))) {
        columns[i] = new SimpleColStats(null, null, columns[i].nullCount());
      }
    }
  }

  private static boolean isFloat(DataField field) {
    DataTypeRoot root = field.type().getTypeRoot();
    return root == DataTypeRoot.FLOAT || root == DataTypeRoot.DOUBLE;
  }

  // ---------------------------------------------------------------- appending them

  /**
   * The candidates whose name another file of their partition has, live or among the candidates: deletion
   * vectors identify files only by name.
   */
  public String namesakes(FileStoreTable table, Candidates candidates) throws Exception {
    Set partitions = new HashSet();
    for (Iterator each = candidates.fitting.iterator(); each.hasNext(); ) {
      partitions.add(((Fitting) each.next()).partition);
    }
    Set taken = new HashSet();
    if (table.snapshotManager().latestSnapshotId() != null) {
      List live = table.store().newScan().withPartitionFilter(new ArrayList(partitions)).plan().files();
      for (Iterator each = live.iterator(); each.hasNext(); ) {
        ManifestEntry entry = (ManifestEntry) each.next();
        taken.add(Pair.of(entry.partition(), entry.fileName()));
      }
    }
    List found = new ArrayList();
    for (Iterator each = candidates.fitting.iterator(); each.hasNext(); ) {
      Fitting file = (Fitting) each.next();
      if (!taken.add(Pair.of(file.partition, file.name))) {
        found.add(file.path);
      }
    }
    return JSON.writeValueAsString(found);
  }

  /** The commit messages that append them. Files outside Paimon's own places (`outside`) are named by their whole path. */
  public List messages(FileStoreTable table, Candidates candidates, String outside) throws Exception {
    Set elsewhere = new HashSet((List) JSON.readValue(outside, List.class));
    Map byPartition = new HashMap();
    for (Iterator each = candidates.fitting.iterator(); each.hasNext(); ) {
      Fitting file = (Fitting) each.next();
      List files = (List) byPartition.get(file.partition);
      if (files == null) {
        files = new ArrayList();
        byPartition.put(file.partition, files);
      }
      files.add(entry(file, elsewhere.contains(file.path)));
    }
    List messages = new ArrayList();
    for (Iterator each = byPartition.entrySet().iterator(); each.hasNext(); ) {
      Map.Entry of = (Map.Entry) each.next();
      DataIncrement added = new DataIncrement((List) of.getValue(), new ArrayList(), new ArrayList());
      Integer buckets = Integer.valueOf(table.coreOptions().bucket());
      messages.add(
          new CommitMessageImpl((BinaryRow) of.getKey(), 0, buckets, added, CompactIncrement.emptyIncrement()));
    }
    return messages;
  }

  private static DataFileMeta entry(Fitting file, boolean outside) {
    return DataFileMeta.forAppend(
        file.name,
        file.bytes,
        file.rows,
        file.stats,
        0L,
        file.rows - 1,
        file.schema,
        Collections.EMPTY_LIST,
        null,
        FileSource.APPEND,
        file.statsColumns,
        outside ? file.path : null,
        null,
        null);
  }
}
